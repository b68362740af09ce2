"""The tests of a node's children as numbers, before any uniform is thrown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drawing import Drawing
from ..sampling.draw import Residual
from .base import Decision, Proposal, TargetLaw
from .fit import require_fit
from .masses import Masses


@dataclass(frozen=True, slots=True)
class Trials:
    """Tests of ``K`` slots at ``B`` nodes: a slot whose turn comes is kept if ``u * scale < mass``.

    Tail slots come in order of drawing. Then one ``u`` settles the head, so the masses of head slots
    are running sums over the head, all on the scale of what the tail left over. All float64.
    """

    mass: Tensor  # [B, K], 0 in inert slots
    scale: Tensor  # [B, K]
    num_head: Tensor  # [B] int64
    threshold: Tensor  # [B]: what the rule's residual needs to know

    @property
    def in_head(self) -> Tensor:
        """[B, K] bool."""
        return torch.arange(self.mass.shape[1], device=self.mass.device) < self.num_head[:, None]

    def decide(self, uniforms: Tensor) -> Decision:
        """uniforms: [B, K] float64, or [B, 1] where all children are of the head."""
        slots = self.mass.shape[1]
        slot = torch.arange(slots, device=self.mass.device)
        in_head = slot < self.num_head[:, None]
        u = torch.where(in_head, uniforms[:, :1], uniforms)
        passed = u * self.scale < self.mass
        # The head comes after the tail: tail slots in order of drawing, then head slots.
        rank = torch.where(in_head, slot + slots, slot)
        first = torch.where(passed, rank, 2 * slots).argmin(dim=1)
        return Decision(torch.where(passed.any(dim=1), first, -1), self.threshold)

    def accept_probability(self) -> Tensor:
        """Probability that each slot is kept, given that its turn comes: [B, K].

        A head slot's figure is its share of the head's one draw, so these add up, and what they lack
        of 1 is the correction's.
        """
        kept = torch.where(self.scale > 0, self.mass / self.scale, 0.0).clamp(max=1)
        before = torch.nn.functional.pad(kept, (1, 0))[:, :-1]
        return torch.where(self.in_head, (kept - before).clamp(min=0), kept)


class NodeRule(ABC):
    """A `Verifier` made of `Trials` and a residual."""

    name: str
    exact: bool = True
    drawing: Drawing
    fits: frozenset[Drawing]
    shares_nodes = True

    def num_uniforms(self, num_slots: int) -> int:
        """One a slot. A head is decided by slot 0's alone: with a head, slot 0 is no tail slot."""
        return num_slots

    def decide(self, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
        require_fit(self, proposal)
        if proposal.tokens.shape[1] == 0:
            count = len(law.weights)
            return Decision(proposal.num_head.new_full((count,), -1), proposal.tail_probs.new_zeros(count))
        return self.trials(law, proposal).decide(uniforms)

    @abstractmethod
    def trials(self, law: TargetLaw, proposal: Proposal) -> Trials: ...

    @abstractmethod
    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual: ...


def max_tail(proposal: Proposal) -> int:
    """A bound on the tail draws of any row that the host knows."""
    slots = proposal.tokens.shape[1]
    if proposal.tail_ids.shape[1] == 0:
        return 0
    return slots if proposal.max_tail is None else min(slots, proposal.max_tail)


def lay_out(
    proposal: Proposal,
    masses: Masses,
    tests: tuple[Tensor, Tensor],
    remainder: Tensor,
    threshold: Tensor,
    head_scale: Tensor | None = None,
) -> Trials:
    """Trials from tests in order of drawing.

    tests: mass and scale, [B, N] each. remainder: [B], the mass that all tests refuse.
    head_scale: [B], what has become of the target's mass on the head; None: all of it is left.
    """
    slot = torch.arange(proposal.tokens.shape[1], device=remainder.device)
    head = masses.head.cumsum(1)
    if head_scale is not None:
        head = head * head_scale[:, None]
    mass = torch.where(slot < proposal.num_head[:, None], head, 0.0)
    scale = remainder[:, None].expand_as(mass)
    num_tests = tests[0].shape[1]
    if num_tests > 0:
        test = slot - proposal.num_head[:, None]
        in_tail = (test >= 0) & (test < proposal.num_tail[:, None])
        test = test.clamp(min=0, max=num_tests - 1)
        mass = torch.where(in_tail, tests[0].gather(1, test), mass)
        scale = torch.where(in_tail, tests[1].gather(1, test), scale)
    return Trials(mass, scale, proposal.num_head, threshold)
