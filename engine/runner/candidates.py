"""All expanded nodes of a step, of every shape and level, as one proposal and one topology."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..drawing import Drawing
from ..proposers.base import GrownGroup
from ..tree import TreeShape
from ..verifiers.base import Links, Proposal
from ..verifiers.walk import Topology
from .batch import TargetBatch


@dataclass(frozen=True, slots=True)
class Candidates:
    """``E`` expanded nodes of one step."""

    proposal: Proposal  # of E nodes
    topology: Topology
    nodes: Tensor  # [E] int64: the node each row belongs to
    owners: tuple[int, ...]  # [E] index into the batch's owners
    test_slots: tuple[tuple[int, int, int], ...]  # [E] (owner, first uniform, how many) of each row
    places: tuple[tuple[TreeShape, int], ...]  # [E] shape of the row's tree, and depth of its node

    def drawings(self, rows: SequenceOf[int]) -> frozenset[Drawing]:
        """How the children of some rows were drawn."""
        return frozenset(self.places[row][0].drawing for row in rows)

    def links(self, rows: SequenceOf[int]) -> Links:
        """Of whole trees that ``rows`` hold all expanded nodes of, ascending; numbered as in ``rows``."""
        device = self.nodes.device
        chosen = torch.tensor(rows, dtype=torch.long, device=device)
        number = torch.full_like(self.nodes, -1)
        number[chosen] = torch.arange(len(rows), device=device)
        child_node = self.topology.child_node[chosen]
        child_row = self.topology.expanded_row[child_node.clamp(min=0)]
        leaf = (child_node < 0) | (child_row < 0)
        levels: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            levels.setdefault(self.places[row][1], []).append(place)
        even = [shape.is_even(depth) for shape, depth in (self.places[row] for row in rows)]
        return Links(
            torch.where(leaf, -1, number[child_row.clamp(min=0)]),
            tuple(torch.tensor(levels[depth], device=device) for depth in sorted(levels)),
            torch.tensor(even, dtype=torch.bool, device=device),
        )


def gather_candidates(
    batch: TargetBatch, groups: SequenceOf[GrownGroup], device: torch.device
) -> Candidates | None:
    """None when no request has a tree."""
    if not groups:
        return None
    num_slots = max(level.num_children for group in groups for level in group.shape.levels)
    num_law = max(level.proposal.tail_ids.shape[1] for group in groups for level in group.levels)
    proposals: list[Proposal] = []
    nodes: list[Tensor] = []
    children: list[Tensor] = []
    owners: list[int] = []
    tests: list[tuple[int, int, int]] = []
    places: list[tuple[TreeShape, int]] = []
    for group, first_node, first_owner in zip(groups, batch.group_nodes, batch.group_owners, strict=True):
        size, slots = group.tokens.shape
        base = first_node + slots * torch.arange(size, device=device)
        offset = 0
        for depth, (level, grown) in enumerate(zip(group.shape.levels, group.levels, strict=True)):
            proposals.append(_widen(grown.proposal, num_slots, num_law))
            nodes.append((base[:, None] + grown.parents).flatten())
            flat = (base[:, None, None] + grown.children).flatten(0, 1)
            children.append(pad(flat, (0, num_slots - level.num_children), value=-1))
            for tree in range(size):
                for node in range(level.expand):
                    owners.append(first_owner + tree)
                    tests.append((first_owner + tree, offset + node * level.num_children, level.num_children))
            places += [(group.shape, depth)] * (size * level.expand)
            offset += level.num_nodes
    expanded = torch.cat(nodes)
    row = torch.full((len(batch.node_owner),), -1, dtype=torch.long, device=device)
    row[expanded] = torch.arange(expanded.shape[0], device=device)
    topology = Topology(
        child_node=torch.cat(children), expanded_row=row, root=torch.tensor(batch.roots, device=device)
    )
    return Candidates(_concatenate(proposals), topology, expanded, tuple(owners), tuple(tests), tuple(places))


def _widen(proposal: Proposal, num_slots: int, num_law: int) -> Proposal:
    """Inert slots and empty tail entries up to the widest of the step."""
    slots = num_slots - proposal.tokens.shape[1]
    law = num_law - proposal.tail_ids.shape[1]
    return Proposal(
        pad(proposal.tokens, (0, slots), value=-1),
        proposal.num_head,
        proposal.num_tail,
        pad(proposal.tail_ids, (0, law)),
        pad(proposal.tail_probs, (0, law)),
        pad(proposal.tail_index, (0, slots)),
        proposal.max_tail,
        proposal.drawings,
    )


def _concatenate(proposals: SequenceOf[Proposal]) -> Proposal:
    bounds = [proposal.max_tail for proposal in proposals]
    return Proposal(
        torch.cat([proposal.tokens for proposal in proposals]),
        torch.cat([proposal.num_head for proposal in proposals]),
        torch.cat([proposal.num_tail for proposal in proposals]),
        torch.cat([proposal.tail_ids for proposal in proposals]),
        torch.cat([proposal.tail_probs for proposal in proposals]),
        torch.cat([proposal.tail_index for proposal in proposals]),
        None if None in bounds else max(bound for bound in bounds if bound is not None),
        frozenset().union(*(proposal.drawings for proposal in proposals)),
    )
