"""K-SEQ of SpecTr (Sun et al., arXiv 2310.15141): one accept test for all independent draws.

Accept ``x`` with probability ``min(1, p(x) / (rho q(x)))``. With ``b = sum min(q, p / rho)`` and ``n`` draws
the correction's law is ``p - min(q, p / rho) (1 - (1 - b)^n) / b``, which is none where
``rho >= (1 - (1 - b)^n) / b``. The least such ``rho`` in ``[1, n]`` accepts the most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drawing import Drawing
from ..sampling.draw import Residual
from .base import Decision, Proposal, TargetLaw
from .masses import split
from .pieces import Pieces
from .residuals import with_tail_replaced
from .trials import NodeRule, Trials, lay_out, max_tail

_HALVINGS = 52  # of [1, n]; fewer would only accept less


class SpecTrVerifier(NodeRule):
    name = "spectr"
    drawing = Drawing.INDEPENDENT
    fits = frozenset({Drawing.HEAD, Drawing.HEAD_AND_TAIL, Drawing.INDEPENDENT, Drawing.CHAIN})

    def trials(self, law: TargetLaw, proposal: Proposal) -> Trials:
        """``threshold`` is ``rho``."""
        masses = split(law, proposal)
        q, num_tests = proposal.tail_probs, max_tail(proposal)
        n = proposal.num_tail.clamp(min=1)
        if num_tests == 0:
            empty = masses.tail.new_zeros(len(n), 0)
            elsewhere = masses.head.sum(dim=1) + masses.outside
            return lay_out(proposal, masses, (empty, empty), elsewhere, torch.ones_like(elsewhere))
        rho = _solve(masses.tail, q, n)
        kept, left = _split_tail(masses.tail, q, rho, n)
        kept = torch.where(proposal.num_tail[:, None] > 0, kept, 0.0)
        last = proposal.tokens.shape[1] - 1
        slots = (proposal.num_head[:, None] + torch.arange(num_tests, device=n.device)).clamp(max=last)
        drawn = proposal.tail_index.gather(1, slots)
        tests = (kept.gather(1, drawn), q.gather(1, drawn))
        remainder = left.sum(dim=1) + masses.head.sum(dim=1) + masses.outside
        return lay_out(proposal, masses, tests, remainder, rho)

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        p = law.probabilities
        if proposal.tail_ids.shape[1] == 0:
            return Residual.of(with_tail_replaced(p, proposal, proposal.tail_probs))
        tail = torch.where(proposal.tail_probs > 0, p.gather(1, proposal.tail_ids), 0.0)
        n = proposal.num_tail.clamp(min=1)
        _, left = _split_tail(tail, proposal.tail_probs, decision.threshold.clamp(min=1), n)
        return Residual.of(with_tail_replaced(p, proposal, left))


def _split_tail(p: Tensor, q: Tensor, rho: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """``min(q, p / rho)``, and what ``n`` tests with it leave of ``p``: [B, M] each."""
    kept = torch.minimum(q, p / rho[:, None])
    b = kept.sum(dim=1).clamp(max=1)
    return kept, (p - kept * torch.where(b > 0, _any_of(b, n) / b, 0.0)[:, None]).clamp(min=0)


def _any_of(b: Tensor, n: Tensor) -> Tensor:
    """``1 - (1 - b)^n``: that one of ``n`` tests accepts."""
    return -torch.expm1(n * torch.log1p(-b))


def _solve(p: Tensor, q: Tensor, n: Tensor) -> Tensor:
    """The least ``rho`` in ``[1, n]`` with ``rho b >= 1 - (1 - b)^n``: [B].

    The left side grows with ``rho``, the right side falls.
    """
    pieces = Pieces.of(p, q, torch.zeros_like(n, dtype=p.dtype))
    low = torch.ones_like(n, dtype=p.dtype)[:, None]
    high = n[:, None].to(p.dtype)

    def feasible(rho: Tensor) -> Tensor:
        covered = pieces.covered(rho)
        return covered >= _any_of((covered / rho).clamp(max=1), n[:, None])

    high = torch.where(feasible(low), low, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        fits = feasible(middle)
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return high[:, 0]
