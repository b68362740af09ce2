"""Exact residual shaping: reserve a part of the target for later siblings, accept the rest.

With the thresholds ``t_1 >= .. >= t_n >= t_{n+1} = 0`` of `thresholds` and ``w_i`` the probability that
test ``i`` is reached, the i-th tail draw ``x`` is kept with probability::

    [ min(p(x), q(x) t_i) - min(p(x), q(x) t_{i+1}) ] / ( w_i q(x) )

If none is kept, a token is drawn from ``p`` on the head and ``(p - q t_1)+`` elsewhere: a head token is a
kept child, any other is the correction. Test ``i`` adds ``min(p, q t_i) - min(p, q t_{i+1})`` to the law
of the output; the sum telescopes to ``min(p, q t_1)`` and the last draw adds the rest of ``p``.

Without a tail this is "draw from the target, keep it if it is a child"; with a one-hot target it is
greedy decoding; with one draw and no head it is ordinary speculative sampling.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..drawing import Drawing
from ..native import kernels_for
from ..sampling.draw import Residual
from .base import Decision, Proposal, TargetLaw
from .fit import require_fit
from .masses import Masses, listed_tokens, split
from .thresholds import Thresholds, solve_thresholds
from .trials import NodeRule, Trials, max_tail


class ResiSpecVerifier(NodeRule):
    """The default rule: any head, any tail."""

    name = "resispec"
    drawing = Drawing.HEAD_AND_TAIL
    fits = frozenset({Drawing.HEAD, Drawing.HEAD_AND_TAIL, Drawing.INDEPENDENT, Drawing.CHAIN})

    def decide(self, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
        kernels = kernels_for(uniforms.device)
        if kernels is None or proposal.tokens.shape[1] == 0:
            return super().decide(law, proposal, uniforms)
        require_fit(self, proposal)
        child, threshold = kernels.decide(
            law.weights,
            proposal.tokens,
            proposal.num_head,
            proposal.num_tail,
            (proposal.tail_ids, proposal.tail_probs, proposal.tail_index),
            uniforms,
        )
        return Decision(child, threshold)

    def trials(self, law: TargetLaw, proposal: Proposal) -> Trials:
        """``threshold`` is ``t_1``."""
        masses, solved = solve(law, proposal)
        slot = torch.arange(proposal.tokens.shape[1], device=masses.head.device)
        in_head = slot < proposal.num_head[:, None]
        mass = torch.where(in_head, masses.head.cumsum(1), 0.0)
        scale = solved.remainder[:, None].expand_as(mass)
        if solved.reach.shape[1] > 0:
            in_tail, test, tail_mass, q = tail_tests(proposal, masses.tail, solved.t)
            mass = torch.where(in_tail, tail_mass, mass)
            scale = torch.where(in_tail, solved.reach.gather(1, test) * q, scale)
        return Trials(mass, scale, proposal.num_head, solved.t[:, 0])

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        """On the scale of the law's weights."""
        ids, listed = listed_tokens(proposal)
        slots = proposal.tokens.shape[1]
        covered = proposal.tail_probs * (decision.threshold * law.total)[:, None]
        excess = (law.weights.gather(1, ids[:, slots:]).double() - covered).clamp(min=0)
        left = torch.cat([excess.new_zeros(len(ids), slots), excess], dim=1)
        return Residual(law.weights, ids, torch.where(listed, left, torch.inf))


def solve(law: TargetLaw, proposal: Proposal) -> tuple[Masses, Thresholds]:
    """The target's masses at the nodes, and their thresholds."""
    masses = split(law, proposal)
    return masses, solve_thresholds(
        masses.tail,
        proposal.tail_probs,
        pad(masses.head.cumsum(1), (1, 0))[:, -1],  # of no slots: 0
        masses.outside,
        proposal.num_tail,
        max_tail(proposal),
    )


def tail_tests(proposal: Proposal, p_tail: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every slot: whether it is of the tail, its place there, the mass its test accepts, and ``q``.

    p_tail: [B, M], t: [B, N + 1]. Returns [B, K] each; the place is clamped to ``[0, N)``.
    """
    slot = torch.arange(proposal.tokens.shape[1], device=p_tail.device)
    test = slot - proposal.num_head[:, None]
    in_tail = (test >= 0) & (test < proposal.num_tail[:, None])
    test = test.clamp(min=0, max=t.shape[1] - 2)
    p = p_tail.gather(1, proposal.tail_index)
    q = proposal.tail_probs.gather(1, proposal.tail_index)
    reserved = torch.minimum(p, q * t.gather(1, test + 1))  # left for later siblings
    offered = torch.minimum(p, q * t.gather(1, test))
    return in_tail, test, offered - reserved, q
