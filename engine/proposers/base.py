"""The contract of a proposer, and the trees it grows.

``G`` requests of one shape are grown together; their trees have ``1 + n + t`` slots each, slot 0 being the
root (the last committed token), numbered as `CandidateTree` says. The number ``t`` of known nodes may
differ, and tensors have ``S`` slots, as many as the largest tree.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..grammar.base import Constraint
from ..known_tree import NOTHING_KNOWN, KnownTree
from ..request import SamplingParams
from ..tree import CandidateTree, TreeShape
from ..verifiers.base import Proposal
from .law import DraftLaw


@dataclass(frozen=True, slots=True)
class DraftItem:
    """What a proposer is told of one request: what the draft has not seen yet, and the tree wanted."""

    catch_up: tuple[int, ...]  # committed tokens the draft has still to run, in order
    start: int  # position of the first of them
    kv_start: int  # first KV row of the request
    shape: TreeShape | None  # what the draft adds to the known nodes; None: catch up only
    sampling: SamplingParams
    uniforms: tuple[float, ...] = ()  # one per child slot of the shape, fresh
    known: KnownTree = NOTHING_KNOWN
    traced: bool = False  # keep the draft's law for the step's trace
    constraint: Constraint | None = None  # of the target's law; what it excludes is drafted in vain

    @property
    def root(self) -> int:
        """Position of the last committed token."""
        return self.start + len(self.catch_up) - 1


@dataclass(frozen=True, slots=True)
class GrownLevel:
    """The children of one level's expanded nodes, for all ``G`` requests of a group."""

    parents: Tensor  # [G, w] int64: slots of the expanded nodes
    children: Tensor  # [G, w, K] int64: the slot a kept child leads to, or -1; equal draws lead to one slot
    proposal: Proposal  # of the G * w nodes, request by request
    law: DraftLaw | None = None  # there, if a request of the group is traced


@dataclass(frozen=True, slots=True)
class GrownGroup:
    """The trees of all requests that have the same shape."""

    shape: TreeShape
    members: tuple[int, ...]  # [G] indices into the items given
    tokens: Tensor  # [G, S] int64
    visible: Tensor  # [G, S, S] bool: slot j is slot i or an ancestor of it
    levels: tuple[GrownLevel, ...]
    known: tuple[KnownTree, ...]  # [G]

    def candidates(self, tree: int) -> CandidateTree:
        return CandidateTree(self.shape, self.known[tree])


class Proposer(Protocol):
    """Grows the trees of many requests together. Reads nothing back to the host."""

    def grow(self, items: SequenceOf[DraftItem]) -> tuple[GrownGroup, ...]:
        """Catch the draft up for every item and grow a tree for those with a shape.

        Afterwards the draft holds all of each item's ``catch_up``, and scratch in the rows behind.
        """
        ...
