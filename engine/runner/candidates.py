"""All expanded nodes of a step, of every shape and level, as one proposal and one topology."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from resispec.models.device import put

from ..drawing import Drawing
from ..proposers.base import GrownGroup, GrownLevel
from ..tree import CandidateTree
from ..verifiers.base import Links, Proposal
from ..verifiers.walk import Topology
from .batch import TargetBatch

Test = tuple[int, int, int]  # of one row: its owner, the first of the owner's uniforms, how many


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row's node is, and how its children were made."""

    tree: CandidateTree
    depth: int
    drawing: Drawing
    even: bool  # see `Links`


@dataclass(frozen=True, slots=True)
class Candidates:
    """``E`` expanded nodes of one step."""

    proposal: Proposal  # of E nodes
    topology: Topology
    nodes: Tensor  # [E] int64: the node each row belongs to
    owners: tuple[int, ...]  # [E] index into the batch's owners
    test_slots: tuple[Test, ...]  # [E]
    places: tuple[Place, ...]  # [E]
    levels: tuple[GrownLevel, ...] = ()  # that the draft has grown; the first rows are theirs, in order

    def drawings(self, rows: SequenceOf[int]) -> frozenset[Drawing]:
        """How the children of some rows were drawn."""
        return frozenset(self.places[row].drawing for row in rows)

    def links(self, rows: SequenceOf[int]) -> Links:
        """Of whole trees that ``rows`` hold all expanded nodes of, ascending; numbered as in ``rows``."""
        device = self.nodes.device
        chosen = put(rows, device)
        number = torch.full_like(self.nodes, -1)
        number[chosen] = torch.arange(len(rows), device=device)
        child_node = self.topology.child_node[chosen]
        child_row = self.topology.expanded_row[child_node.clamp(min=0)]
        leaf = (child_node < 0) | (child_row < 0)
        levels: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            levels.setdefault(self.places[row].depth, []).append(place)
        return Links(
            torch.where(leaf, -1, number[child_row.clamp(min=0)]),
            tuple(put(levels[depth], device) for depth in sorted(levels)),
            put([self.places[row].even for row in rows], device, torch.bool),
        )


@dataclass(slots=True)
class _Rows:
    """Rows in the making."""

    proposals: list[Proposal] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)
    children: list[Tensor] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    tests: list[Test] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


def gather_candidates(batch: TargetBatch, device: torch.device) -> Candidates | None:
    """None when no request has a tree.

    A known node that the draft expands as well has two rows. The one with the draft's children counts;
    nothing leads to the other, which has none.
    """
    groups = batch.groups
    if not groups:
        return None
    rows = _Rows()
    for group, first_owner in zip(groups, batch.group_owners, strict=True):
        _add_drafted(rows, group, batch.roots, first_owner)
    num_drafted = len(rows.owners)
    for group, first_owner in zip(groups, batch.group_owners, strict=True):
        _add_known(rows, known_rows(group, batch.roots, first_owner), device)
    num_slots = max(proposal.tokens.shape[1] for proposal in rows.proposals)
    num_law = max(proposal.tail_ids.shape[1] for proposal in rows.proposals)
    proposal = _concatenate([_widen(part, num_slots, num_law) for part in rows.proposals])
    children = torch.cat([_wide(part, num_slots, -1) for part in rows.children])
    expanded = torch.cat(rows.nodes)
    number = torch.arange(expanded.shape[0], device=device)
    row = torch.full((len(batch.node_owner),), -1, dtype=torch.long, device=device)
    row[expanded[num_drafted:]] = number[num_drafted:]
    row[expanded[:num_drafted]] = number[:num_drafted]
    if 0 < num_drafted < len(rows.owners):
        counts = row[expanded] == number
        children = torch.where(counts[:, None], children, -1)
        proposal = replace(
            proposal,
            tokens=torch.where(counts[:, None], proposal.tokens, -1),
            num_head=proposal.num_head * counts,
            num_tail=proposal.num_tail * counts,
        )
    topology = Topology(children, row, root=put(batch.roots, device))
    return Candidates(
        proposal,
        topology,
        expanded,
        tuple(rows.owners),
        tuple(rows.tests),
        tuple(rows.places),
        tuple(level for group in groups for level in group.levels),
    )


def _add_drafted(rows: _Rows, group: GrownGroup, roots: SequenceOf[int], first_owner: int) -> None:
    """The nodes that the draft has expanded, level by level, request by request."""
    size = len(group.members)
    base = put(roots[first_owner : first_owner + size], group.tokens.device)
    tests = drafted_tests(group, first_owner)
    distinct = {id(known): group.candidates(tree) for tree, known in enumerate(group.known)}
    for depth, (level, grown) in enumerate(zip(group.shape.levels, group.levels, strict=True)):
        rows.proposals.append(grown.proposal)
        rows.nodes.append((base[:, None] + grown.parents).flatten())
        child = torch.where(grown.children < 0, -1, base[:, None, None] + grown.children)
        rows.children.append(child.flatten(0, 1))
        (beside_known,) = grown.proposal.drawings
        places: dict[int, Place] = {}
        for key, candidates in distinct.items():
            drawing = beside_known if candidates.known.num_nodes else group.shape.drawing
            places[key] = Place(candidates, depth, drawing, candidates.is_even(depth))
        rows.tests += tests[depth]
        for tree, known in enumerate(group.known):
            rows.owners += [first_owner + tree] * level.expand
            rows.places += [places[id(known)]] * level.expand


def drafted_tests(group: GrownGroup, first_owner: int) -> list[list[Test]]:
    """Of every level's expanded nodes, request by request."""
    trees = [group.candidates(tree) for tree in range(len(group.members))]
    firsts = [0] * len(trees)
    levels: list[list[Test]] = []
    for depth, level in enumerate(group.shape.levels):
        tests: list[Test] = []
        for tree, candidates in enumerate(trees):
            count = candidates.row_size(depth)
            tests += [
                (first_owner + tree, firsts[tree] + node * count, count) for node in range(level.expand)
            ]
            firsts[tree] += level.expand * count
        levels.append(tests)
    return levels


@dataclass(slots=True)
class KnownRows:
    """The known nodes of a group with known children, ``C`` at the most, which -1 fills up."""

    nodes: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)  # C each
    children: list[list[int]] = field(default_factory=list)  # C each: nodes
    tests: list[Test] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def proposal(self, device: torch.device) -> Proposal:
        tokens = put(self.tokens, device)
        count = (tokens >= 0).sum(dim=1)
        return Proposal(
            tokens,
            num_head=count,
            num_tail=torch.zeros_like(count),
            tail_ids=count.new_zeros(len(tokens), 0),
            tail_probs=torch.zeros(len(tokens), 0, dtype=torch.float64, device=device),
            tail_index=torch.zeros_like(tokens),
            max_tail=0,
            drawings=frozenset({Drawing.HEAD}),
        )


def known_rows(group: GrownGroup, roots: SequenceOf[int], first_owner: int) -> KnownRows:
    """roots: of all owners."""
    rows = KnownRows()
    width = max(tree.max_children for tree in group.known)
    for index, known in enumerate(group.known):
        owner = first_owner + index
        candidates = group.candidates(index)
        first = candidates.num_tests - known.num_nodes
        offset = roots[owner] + group.shape.num_nodes  # of known node 0, were it not the root
        for node in known.inner:
            below = known.children[node]
            empty = [-1] * (width - len(below))
            rows.nodes.append(roots[owner] if node == 0 else offset + node)
            rows.tokens.append([known.tokens[child - 1] for child in below] + empty)
            rows.children.append([offset + child for child in below] + empty)
            rows.tests.append((owner, first, len(below)))
            rows.places.append(Place(candidates, known.depths[node], Drawing.HEAD, True))
            first += len(below)
    return rows


def _add_known(rows: _Rows, known: KnownRows, device: torch.device) -> None:
    if not known.nodes:
        return
    rows.owners += [owner for owner, _, _ in known.tests]
    rows.tests += known.tests
    rows.places += known.places
    rows.nodes.append(put(known.nodes, device))
    rows.children.append(put(known.children, device))
    rows.proposals.append(known.proposal(device))


def _widen(proposal: Proposal, num_slots: int, num_law: int) -> Proposal:
    """Inert slots and empty tail entries up to the widest of the step."""
    return Proposal(
        _wide(proposal.tokens, num_slots, -1),
        proposal.num_head,
        proposal.num_tail,
        _wide(proposal.tail_ids, num_law),
        _wide(proposal.tail_probs, num_law),
        _wide(proposal.tail_index, num_slots),
        proposal.max_tail,
        proposal.drawings,
    )


def _wide(part: Tensor, width: int, value: int = 0) -> Tensor:
    """[B, ..] -> [B, width], without a copy of what is as wide already."""
    extra = width - part.shape[1]
    return pad(part, (0, extra), value=value) if extra else part


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
