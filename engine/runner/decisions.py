"""What the verifiers decide at the nodes with children: at all of them, or where the walks come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resispec.models.device import device_for, put

from ..sampling.draw import Residual
from ..sampling.weights import NodeLaws
from ..verifiers.base import Decision, TargetLaw, TreeVerifier
from ..verifiers.table import VERIFIERS
from ..verifiers.walk import Walk, at_ends
from .candidates import Candidates

LawsAt = Callable[[Tensor, SequenceOf[int]], NodeLaws]  # of nodes [B] that belong to some owners

# Numbers in laws below the roots, at least, for each level more: they take as long as its small operations.
WORTH_A_LEVEL = 400_000


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome at ``E`` nodes with children; it means something where the walk from the root gets to."""

    decision: Decision
    bad: Tensor  # [E] bool: the target's law there means nothing
    law: TargetLaw | None  # [E, V], where it was made for all


class Decisions:
    """Of one step."""

    def __init__(
        self, verifiers: SequenceOf[str], candidates: Candidates, uniforms: Tensor, laws_at: LawsAt
    ) -> None:
        """verifiers: of every owner. uniforms: [E, K] float64 in [0, 1)."""
        self._verifiers = verifiers
        self._candidates = candidates
        self._uniforms = uniforms
        self._laws_at = laws_at
        self._device = uniforms.device

    def make(self, num_ids: int, max_depth: int, *, show_all: bool) -> Decided:
        """num_ids: of a law. show_all: the laws of all nodes are wanted, wherever the walks go.

        Looking at every node takes as many operations as looking at one; looking at those only that the
        walks come to, level by level, takes fewer laws, and tells the host where they went.
        """
        levels = min(max_depth, len({place.depth for place in self._candidates.places}))
        below_roots = len(self._candidates.owners) - len(self._verifiers)
        worth = below_roots * num_ids >= WORTH_A_LEVEL * (levels - 1)
        whole = any(isinstance(VERIFIERS[name], TreeVerifier) for name in self._verifiers)
        if show_all or whole or not worth or levels < 2 or not device_for(self._device).reads_freely:
            return self.everywhere()
        return self.on_the_way(max_depth)

    def everywhere(self) -> Decided:
        """All nodes in one go; nothing is read back to the host."""
        candidates = self._candidates
        laws = self._laws_at(candidates.nodes, candidates.owners)
        child = torch.full_like(candidates.nodes, -1)
        threshold = self._uniforms.new_zeros(len(child))
        self._decide_into(child, threshold, laws.law, range(len(child)))
        return Decided(Decision(child, threshold), laws.bad, laws.law)

    def on_the_way(self, max_depth: int) -> Decided:
        """Level by level, all walks together, each level's decisions read to see where they go on."""
        candidates, topology = self._candidates, self._candidates.topology
        child = torch.full_like(candidates.nodes, -1)
        threshold = self._uniforms.new_zeros(len(child))
        bad = torch.zeros_like(child, dtype=torch.bool)
        row_of, nodes_below = topology.expanded_row.tolist(), topology.child_node.tolist()
        reached = topology.root.tolist()
        for _ in range(max_depth):
            rows = sorted(row_of[node] for node in reached if row_of[node] >= 0)
            if not rows:
                break
            index = put(rows, self._device)
            laws = self._laws_at(candidates.nodes[index], [candidates.owners[row] for row in rows])
            bad[index] = laws.bad
            self._decide_into(child, threshold, laws.law, rows)
            slots = zip(rows, child[index].tolist(), strict=True)
            reached = [nodes_below[row][slot] for row, slot in slots if slot >= 0]
        return Decided(Decision(child, threshold), bad, None)

    def _decide_into(self, child: Tensor, threshold: Tensor, law: TargetLaw, rows: SequenceOf[int]) -> None:
        """Fill in the decisions at ``rows``, ascending, whose laws are those of ``law``, in order."""
        candidates = self._candidates
        by_verifier = _rows_by_name([self._verifiers[candidates.owners[row]] for row in rows])
        for name, places in by_verifier.items():
            verifier, chosen = VERIFIERS[name], [rows[place] for place in places]
            index = put(chosen, self._device)
            proposal = candidates.proposal
            if len(chosen) < len(child):
                proposal = replace(proposal.rows(index), drawings=candidates.drawings(chosen))
            part = law if len(by_verifier) == 1 else law.rows(put(places, self._device))
            if isinstance(verifier, TreeVerifier):
                links = candidates.links(chosen)
                decided = verifier.decide_tree(part, proposal, links, self._uniforms[index])
            else:
                decided = verifier.decide(part, proposal, self._uniforms[index])
            child[index], threshold[index] = decided.child, decided.threshold

    def residual(self, law: TargetLaw, decided: Decision, end: Walk) -> Residual:
        """The last token's law, of R rows: at a leaf the target's, elsewhere the correction's."""
        proposal, none_kept = at_ends(self._candidates.proposal, decided, self._candidates.topology, end)
        by_verifier = _rows_by_name(self._verifiers)
        if len(by_verifier) == 1:
            return VERIFIERS[next(iter(by_verifier))].residual(law, proposal, none_kept)
        weights = law.weights.double()
        for name, chosen in by_verifier.items():
            rows = put(chosen, self._device)
            ended = Decision(none_kept.child[rows], none_kept.threshold[rows])
            residual = VERIFIERS[name].residual(law.rows(rows), proposal.rows(rows), ended)
            weights[rows] = residual.dense()
        return Residual.of(weights)

    def bad_walks(self, bad: Tensor, end: Walk) -> Tensor:
        """Which walks looked at a law that means nothing: [R] bool. bad: [E] bool.

        Nodes that were not kept do not count, but for rules that look at whole trees.
        """
        topology = self._candidates.topology
        passed = torch.cat([topology.root[:, None], end.path], dim=1)
        row = topology.expanded_row[passed.clamp_min(0)]
        passed_bad = (bad[row.clamp_min(0)] & (row >= 0) & (passed >= 0)).any(dim=1)
        whole = [isinstance(VERIFIERS[name], TreeVerifier) for name in self._verifiers]
        if not any(whole):
            return passed_bad
        owners = put(self._candidates.owners, self._device)
        in_view = torch.zeros(len(whole), device=self._device).index_add_(0, owners, bad.float()) > 0
        return passed_bad | (put(whole, self._device, torch.bool) & in_view)


def _rows_by_name(names: SequenceOf[str]) -> Mapping[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return rows
