"""The contract of a verifier, and the values it works on.

A verifier decides, for many tree nodes at once, which of a node's children is kept, or that none is
and what the correction token's law then is. *Exact* means: over the randomness of the proposal and
of the verifier, the token returned at a node has the target's law there.

Shapes: ``B`` nodes that have children (any requests, any depths, mixed), ``K`` child slots, ``M``
tokens in a tail's law (0: no row has a tail), ``V`` vocabulary, ``R`` rows picked out of the ``B``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TargetLaw:
    """The target's processed law at ``B`` nodes: ``p = weights / total``.

    Weights are what defines the law; everything computed from them is in float64.
    """

    weights: Tensor  # [B, V] float32 or float64, >= 0
    total: Tensor  # [B] float64, the weights' sum, > 0

    def rows(self, index: Tensor) -> TargetLaw:
        return TargetLaw(self.weights[index], self.total[index])


@dataclass(frozen=True, slots=True)
class Proposal:
    """How the children of ``B`` nodes were made, with the law really drawn from.

    Slots ``[0, num_head)`` are the *head*: distinct tokens chosen before anything was drawn. Slots
    ``[num_head, num_head + num_tail)`` are the *tail*: independent draws, in the order of drawing,
    from ``q~``, which has no mass on the head. Later slots are inert. All of ``num_head``, ``num_tail``
    and ``q~`` may depend on anything known before the tail was drawn, never on the draws.
    """

    tokens: Tensor  # [B, K] int64; inert slots hold -1
    num_head: Tensor  # [B] int64
    num_tail: Tensor  # [B] int64
    tail_ids: Tensor  # [B, M] int64, distinct within a row where tail_probs > 0
    tail_probs: Tensor  # [B, M] float64, rows sum to 1 (or are all 0 where num_tail is 0)
    tail_index: Tensor  # [B, K] int64: tokens[b, k] == tail_ids[b, tail_index[b, k]] in tail slots, else 0
    max_tail: int | None = None  # a bound on num_tail known to the host, which saves work; None: K

    def rows(self, index: Tensor) -> Proposal:
        return Proposal(
            self.tokens[index],
            self.num_head[index],
            self.num_tail[index],
            self.tail_ids[index],
            self.tail_probs[index],
            self.tail_index[index],
            self.max_tail,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of the tests at ``B`` nodes."""

    child: Tensor  # [B] int64: the slot kept, or -1: none, a correction token ends the walk here
    threshold: Tensor  # [B] float64: t_1, what `residual` needs


class Verifier(Protocol):
    """One exact rule (or one that says it is not). Stateless; all calls run on the tensors' device
    and read nothing back to the host.
    """

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def num_uniforms(self, num_slots: int) -> int:
        """Uniforms one node with ``num_slots`` child slots uses up in `decide`."""
        ...

    def decide(self, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
        """Test the children of every node.

        uniforms: [B, num_uniforms(K)] float64 in [0, 1), fresh, independent.
        """
        ...

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Tensor:
        """Unnormalised law of the correction token, given that no child was kept: [B, V] float64.

        A row may sum to 0 only where a correction has probability 0.
        """
        ...
