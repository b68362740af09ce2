"""The contract of a verifier, and the values it works on.

A verifier decides, for many tree nodes at once, which of a node's children is kept, or that none is
and what the correction token's law then is. *Exact* means: over the randomness of the proposal and
of the verifier, the token returned at a node has the target's law there.

Shapes: ``B`` nodes that have children (any requests, any depths, mixed), ``K`` child slots, ``M``
tokens in a tail's law (0: no row has a tail), ``V`` vocabulary, ``R`` rows picked out of the ``B``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ..drawing import Drawing
from ..sampling.draw import Residual
from ..sampling.sums import row_sums


@dataclass(frozen=True)
class TargetLaw:
    """The target's processed law at ``B`` nodes: ``p = weights / total``.

    Weights are what defines the law; everything computed from them is in float64.
    """

    weights: Tensor  # [B, V] float32 or float64, >= 0; no row is all 0

    @cached_property
    def total(self) -> Tensor:
        """The weights' sums, [B] float64: a pass over all of them, made when first asked for."""
        return row_sums(self.weights)

    @property
    def probabilities(self) -> Tensor:
        """``p``: a new [B, V] float64."""
        p = self.weights.to(torch.float64, copy=True)
        return p.div_(p.sum(dim=1, keepdim=True))

    def rows(self, index: Tensor) -> TargetLaw:
        return TargetLaw(self.weights[index])


@dataclass(frozen=True, slots=True)
class Proposal:
    """How the children of ``B`` nodes were made, with the law really drawn from.

    Slots ``[0, num_head)`` are the *head*: distinct tokens chosen before anything was drawn. Slots
    ``[num_head, num_head + num_tail)`` are the *tail*: draws, in the order of drawing, from ``q~``,
    which has no mass on the head. ``drawings`` says whether they are independent, or each from ``q~``
    without those before it. Later slots are inert. All of ``num_head``, ``num_tail`` and ``q~`` may
    depend on anything known before the tail was drawn, never on the draws.
    """

    tokens: Tensor  # [B, K] int64; inert slots hold -1
    num_head: Tensor  # [B] int64
    num_tail: Tensor  # [B] int64
    tail_ids: Tensor  # [B, M] int64, distinct within a row where tail_probs > 0
    tail_probs: Tensor  # [B, M] float64, rows sum to 1 (or are all 0 where num_tail is 0)
    tail_index: Tensor  # [B, K] int64: tokens[b, k] == tail_ids[b, tail_index[b, k]] in tail slots, else 0
    max_tail: int | None = None  # a bound on num_tail known to the host, which saves work; None: K
    drawings: frozenset[Drawing] = frozenset({Drawing.HEAD_AND_TAIL})  # all that occur in some row

    def rows(self, index: Tensor) -> Proposal:
        return Proposal(
            self.tokens[index],
            self.num_head[index],
            self.num_tail[index],
            self.tail_ids[index],
            self.tail_probs[index],
            self.tail_index[index],
            self.max_tail,
            self.drawings,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of the tests at ``B`` nodes."""

    child: Tensor  # [B] int64: the slot kept, or -1: none, a correction token ends the walk here
    threshold: Tensor  # [B] float64: what `residual` needs; see the verifier, t_1 for most


@dataclass(frozen=True, slots=True)
class Links:
    """Which of ``B`` nodes are whose children, for rules that look at whole trees.

    A rule over whole trees throws a coin for each leaf and each inner node, so no two slots may lead to
    one node.
    """

    child_row: Tensor  # [B, K] int64: the row of the node in each slot; -1: a leaf, or no node
    levels: tuple[Tensor, ...]  # the rows of every level, [b] int64 each, roots first
    even: Tensor  # [B] bool: at most one draw, or trees of one shape below all draws; known before drawing


class Rule(Protocol):
    """One exact rule (or one that says it is not). Stateless; all calls run on the tensors' device
    and read nothing back to the host.
    """

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    @property
    def drawing(self) -> Drawing:
        """How a proposer should draw for it, greedy requests apart, which get chosen children."""
        ...

    @property
    def fits(self) -> frozenset[Drawing]:
        """The ways of drawing that it has a rule for; deciding on others raises MisfitError."""
        ...

    @property
    def shares_nodes(self) -> bool:
        """Whether equal draws at a node may lead to one node with one subtree."""
        ...

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        """Unnormalised law of the correction token, given that no child was kept: of B rows.

        A row may sum to 0 only where a correction has probability 0.
        """
        ...


class Verifier(Rule, Protocol):
    """A rule that looks at one node at a time."""

    def num_uniforms(self, num_slots: int) -> int:
        """Uniforms one node with ``num_slots`` child slots uses up in `decide`."""
        ...

    def decide(self, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
        """Test the children of every node.

        uniforms: [B, num_uniforms(K)] float64 in [0, 1), fresh, independent.
        """
        ...


class TreeVerifier(ABC):
    """A `Rule` that decides on a node in view of what was decided below it.

    A class to inherit from: to ask whether an object is one takes no time, unlike with a protocol.
    """

    name: str
    exact: bool = True
    drawing: Drawing
    fits: frozenset[Drawing]
    shares_nodes: bool = False

    @abstractmethod
    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        """As of `Rule`."""

    @abstractmethod
    def decide_tree(self, law: TargetLaw, proposal: Proposal, links: Links, uniforms: Tensor) -> Decision:
        """Test whole trees. A decision means something where the walk from the root gets to.

        uniforms: [B, K] float64 in [0, 1), fresh, independent: one for the node in each slot.
        """
        ...


AnyVerifier: TypeAlias = Verifier | TreeVerifier
