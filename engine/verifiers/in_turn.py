"""Rules that test the draws in turn against what earlier refusals left of the target.

They differ in what a refusal does to the rest ``R`` of the target and to the law ``q`` of the next draw.
A rest need not sum to 1: dividing by its sum is put off to the test. Off the tail's tokens it stays
proportional to ``p``, so one factor stands for it there, and the work is that of ``M`` tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sampling.draw import Residual
from .base import Decision, Proposal, TargetLaw
from .masses import Masses, split
from .residuals import with_tail_replaced
from .trials import NodeRule, Trials, lay_out, max_tail


@dataclass(frozen=True, slots=True)
class Rest:
    """``R`` and ``q`` at ``B`` nodes, after some refusals. All float64."""

    tail: Tensor  # [B, M]: R on the tail's tokens, 0 where the tail's law is 0
    factor: Tensor  # [B]: R is this times p elsewhere
    elsewhere: Tensor  # [B]: p off the tail's tokens
    q: Tensor  # [B, M]: the law of the next draw

    @property
    def total(self) -> Tensor:
        return self.tail.sum(dim=1) + self.factor * self.elsewhere


class InTurnRule(NodeRule):
    """Accept ``x`` with probability ``min(1, R(x) / q(x))``; `refuse` says what is next."""

    @abstractmethod
    def refuse(self, rest: Rest, drawn: Tensor) -> Rest:
        """The rest after ``drawn`` ([B, 1] indices into the tail's law) were refused."""

    def trials(self, law: TargetLaw, proposal: Proposal) -> Trials:
        masses = split(law, proposal)
        rest, tests = self._test_all(masses, proposal)
        return lay_out(
            proposal, masses, tests, rest.total, torch.zeros_like(rest.factor), head_scale=rest.factor
        )

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:  # noqa: ARG002
        """The rest after all refusals, which the draws determine: ``decision`` is not needed."""
        rest, _ = self._test_all(split(law, proposal), proposal)
        p = law.probabilities * rest.factor[:, None]
        return Residual.of(with_tail_replaced(p, proposal, rest.tail))

    def _test_all(self, masses: Masses, proposal: Proposal) -> tuple[Rest, tuple[Tensor, Tensor]]:
        """What is left in the end, and each test's mass and scale: [B, N], in order of drawing."""
        elsewhere = masses.head.sum(dim=1) + masses.outside
        rest = Rest(masses.tail, torch.ones_like(elsewhere), elsewhere, proposal.tail_probs)
        mass, scale = [], []
        last = proposal.tokens.shape[1] - 1
        for test in range(max_tail(proposal)):
            slot = (proposal.num_head + test).clamp(max=last)[:, None]
            drawn = proposal.tail_index.gather(1, slot)
            mass.append(rest.tail.gather(1, drawn))
            scale.append(rest.total[:, None] * rest.q.gather(1, drawn))
            after = self.refuse(rest, drawn)
            refused = (test < proposal.num_tail)[:, None]
            rest = Rest(
                torch.where(refused, after.tail, rest.tail),
                torch.where(refused[:, 0], after.factor, rest.factor),
                elsewhere,
                torch.where(refused, after.q, rest.q),
            )
        if not mass:
            empty = masses.tail.new_zeros(len(elsewhere), 0)
            return rest, (empty, empty)
        return rest, (torch.cat(mass, dim=1), torch.cat(scale, dim=1))
