"""From decisions at nodes to one path a request.

All requests go together, by gathers, and nothing is read back where that would make the host wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resispec.models.device import device_for

from .base import Decision, Proposal


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
    children: Tensor  # [R, D] int64: which child of its parent each kept node is; means nothing behind them
    num_kept: Tensor  # [R] int64
    final: Tensor  # [R] int64: the node where the walk ended, whose law gives the last token


def walk(topology: Topology, decision: Decision, max_depth: int) -> Walk:
    """Follow the kept children down from every root, at most ``max_depth`` levels."""
    if device_for(topology.root.device).reads_freely:
        return _walk_on_host(topology, decision, max_depth)
    node = topology.root
    alive = torch.ones_like(node, dtype=torch.bool)
    path, children = [], []
    for _ in range(max_depth if topology.child_node.numel() else 0):
        row = topology.expanded_row[node]
        slot = decision.child[row.clamp(min=0)]
        alive = alive & (row >= 0) & (slot >= 0)
        child = topology.child_node[row.clamp(min=0), slot.clamp(min=0)]
        node = torch.where(alive, child, node)
        path.append(torch.where(alive, child, -1))
        children.append(slot)
    return ended(path, children, node, max_depth)


def ended(path: Sequence[Tensor], children: Sequence[Tensor], final: Tensor, max_depth: int) -> Walk:
    """From every level's nodes and children [R], of ``max_depth`` levels or of none."""
    if not path:
        nowhere = final.new_full((len(final), max_depth), -1)
        return Walk(nowhere, nowhere, torch.zeros_like(final), final)
    nodes = torch.stack(list(path), dim=1)
    return Walk(nodes, torch.stack(list(children), dim=1), (nodes >= 0).sum(dim=1), final)


def _walk_on_host(topology: Topology, decision: Decision, max_depth: int) -> Walk:
    """The same, sooner than as many operations on a few numbers each."""
    slots, rows = decision.child.tolist(), topology.expanded_row.tolist()
    nodes = topology.child_node.tolist()
    paths, children, lengths, finals = [], [], [], []
    for node in topology.root.tolist():
        path: list[int] = []
        taken: list[int] = []
        while len(path) < max_depth and (row := rows[node]) >= 0 and (slot := slots[row]) >= 0:
            node = nodes[row][slot]
            path.append(node)
            taken.append(slot)
        empty = [-1] * (max_depth - len(path))
        paths.append(path + empty)
        children.append(taken + empty)
        lengths.append(len(path))
        finals.append(node)
    shape = len(finals), max_depth
    return Walk(
        torch.tensor(paths, dtype=torch.long).view(shape),
        torch.tensor(children, dtype=torch.long).view(shape),
        torch.tensor(lengths, dtype=torch.long),
        torch.tensor(finals, dtype=torch.long),
    )


def at_ends(
    proposal: Proposal, decision: Decision, topology: Topology, end: Walk
) -> tuple[Proposal, Decision]:
    """What `Verifier.residual` needs at the nodes where the walks ended: ``R`` rows each.

    A walk ends at an expanded node that kept no child, or at a leaf: there the rows have no children,
    which makes the residual the target's law. Raises IndexError if no node at all is expanded.
    """
    row = topology.expanded_row[end.final]
    leaf, row = row < 0, row.clamp(min=0)
    ended = proposal.rows(row)
    childless = replace(
        ended,
        num_head=ended.num_head.masked_fill(leaf, 0),
        num_tail=ended.num_tail.masked_fill(leaf, 0),
        tail_probs=ended.tail_probs.masked_fill(leaf[:, None], 0.0),
    )
    threshold = decision.threshold[row].masked_fill(leaf, 0.0)
    return childless, Decision(torch.full_like(row, -1), threshold)
