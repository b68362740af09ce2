"""From decisions at nodes to one path a request: all requests together, by gathers, nothing read back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .base import Decision, Proposal, TargetLaw, Verifier


@dataclass(frozen=True, slots=True)
class Topology:
    """Who is whose child, over the trees of ``R`` requests laid end to end.

    Nodes are numbered flat over all requests (``N`` in all); those with children, the *expanded*
    ones, have a row each (``E`` in all) in a `Proposal` and its `Decision`.
    """

    child_node: Tensor  # [E, K] int64: the node in each child slot, -1 in inert slots
    expanded_row: Tensor  # [N] int64: the node's row among the expanded, -1 for a leaf
    root: Tensor  # [R] int64: each request's root


@dataclass(frozen=True, slots=True)
class Walk:
    """What the decisions kept of each tree."""

    path: Tensor  # [R, D] int64: the kept nodes from the root down, the root not among them; then -1
    num_kept: Tensor  # [R] int64
    final: Tensor  # [R] int64: the node where the walk ended, whose law gives the last token


def walk(topology: Topology, decision: Decision, max_depth: int) -> Walk:
    """Follow the kept children down from every root, at most ``max_depth`` levels."""
    node = topology.root
    alive = torch.ones_like(node, dtype=torch.bool)
    path = []
    for _ in range(max_depth if topology.child_node.numel() else 0):
        row = topology.expanded_row[node]
        slot = decision.child[row.clamp(min=0)]
        alive = alive & (row >= 0) & (slot >= 0)
        child = topology.child_node[row.clamp(min=0), slot.clamp(min=0)]
        node = torch.where(alive, child, node)
        path.append(torch.where(alive, child, -1))
    nodes = torch.stack(path, dim=1) if path else node.new_full((node.shape[0], max_depth), -1)
    return Walk(nodes, (nodes >= 0).sum(dim=1), node)


def final_weights(
    verifier: Verifier,
    law: TargetLaw,
    proposal: Proposal,
    decision: Decision,
    topology: Topology,
    end: Walk,
) -> Tensor:
    """Unnormalised law of the last token of each request's step: [R, V] float64.

    At a leaf that is the target's law; at a node that refused all its children, the correction's.
    ``law`` has a row for every node (``N``); ``proposal`` and ``decision`` for the expanded ones (``E``).
    """
    law = law.rows(end.final)
    if proposal.tokens.shape[0] == 0:
        return law.weights.double()
    row = topology.expanded_row[end.final]
    leaf = row < 0
    proposal = proposal.rows(row.clamp(min=0))
    childless = replace(
        proposal,
        num_head=proposal.num_head.masked_fill(leaf, 0),
        num_tail=proposal.num_tail.masked_fill(leaf, 0),
        tail_probs=proposal.tail_probs.masked_fill(leaf[:, None], 0.0),
    )
    picked = decision.threshold[row.clamp(min=0)].masked_fill(leaf, 0.0)
    # The walk ended here, so no child was kept: at a leaf because there is none.
    return verifier.residual(law, childless, Decision(torch.full_like(row, -1), picked))
