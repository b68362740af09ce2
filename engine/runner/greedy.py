"""Walks where every law leaves one token: they follow the children that hold it, and no law is made."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor

from ..verifiers.base import Decision
from ..verifiers.walk import Walk, ended, walk
from .candidates import Candidates
from .decisions import WORTH_A_LEVEL

# Of nodes [B] that belong to some owners: their only tokens [B] int64, and which are no numbers: [B] bool.
GreedyAt = Callable[[Tensor, SequenceOf[int]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Followed:
    """Of R requests."""

    end: Walk
    tokens: Tensor  # [R] int64: the only token where the walk ended
    bad: Tensor  # [R] bool: the walk came to a node whose logits are no numbers


def follow(
    candidates: Candidates,
    node_owner: SequenceOf[int],
    num_owners: int,
    num_ids: int,
    max_depth: int,
    greedy_at: GreedyAt,
) -> Followed:
    """Whichever way looks at fewer numbers for its operations. num_ids: of a node's logits."""
    spared = len(node_owner) - num_owners * (max_depth + 1)
    if spared * num_ids >= WORTH_A_LEVEL * max_depth:
        return follow_by_level(candidates, num_owners, max_depth, greedy_at)
    return follow_at_once(candidates, node_owner, max_depth, greedy_at)


def follow_at_once(
    candidates: Candidates, node_owner: SequenceOf[int], max_depth: int, greedy_at: GreedyAt
) -> Followed:
    """All nodes are looked at together."""
    topology = candidates.topology
    nodes = torch.arange(len(node_owner), device=topology.root.device)
    tokens, bad = greedy_at(nodes, node_owner)
    child = _child_with(candidates.proposal.tokens, tokens[candidates.nodes])
    end = walk(topology, Decision(child, torch.zeros_like(child, dtype=torch.float64)), max_depth)
    seen = torch.cat([topology.root[:, None], end.path], dim=1)
    return Followed(end, tokens[end.final], (bad[seen.clamp_min(0)] & (seen >= 0)).any(dim=1))


def follow_by_level(candidates: Candidates, num_owners: int, max_depth: int, greedy_at: GreedyAt) -> Followed:
    """One node of every request at a time, level by level; a walk that has ended stays where it is."""
    topology, offered = candidates.topology, candidates.proposal.tokens
    node = topology.root
    tokens, bad = greedy_at(node, range(num_owners))
    alive = torch.ones_like(bad)
    path, children = [], []
    for _ in range(max_depth):
        row = topology.expanded_row[node]
        slot = _child_with(offered[row.clamp_min(0)], tokens)
        alive = alive & (row >= 0) & (slot >= 0)
        child = topology.child_node[row.clamp_min(0), slot.clamp_min(0)]
        node = torch.where(alive, child, node)
        path.append(torch.where(alive, child, -1))
        children.append(slot)
        tokens, bad_here = greedy_at(node, range(num_owners))
        bad = bad | bad_here
    return Followed(ended(path, children, node, max_depth), tokens, bad)


def _child_with(offered: Tensor, token: Tensor) -> Tensor:
    """The first slot of each row of [B, K] that holds its ``token`` [B]; -1: none does."""
    holds = offered == token[:, None]
    return torch.where(holds.any(dim=1), holds.int().argmax(dim=1), -1)
