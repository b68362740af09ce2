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

from .base import Decision, Proposal, TargetLaw
from .masses import listed_tokens, split
from .thresholds import solve_thresholds


class ResiSpecVerifier:
    """The default rule: any head, any tail."""

    name = "resispec"
    exact = True

    def num_uniforms(self, num_slots: int) -> int:
        """One a slot. A head is decided by slot 0's alone: with a head, slot 0 is no tail slot."""
        return num_slots

    def decide(self, law: TargetLaw, proposal: Proposal, uniforms: Tensor) -> Decision:
        slots = proposal.tokens.shape[1]
        if slots == 0:
            return Decision(proposal.num_head.new_full(law.total.shape, -1), torch.zeros_like(law.total))
        mass, scale, first_threshold = _tests(law, proposal)
        slot = torch.arange(slots, device=mass.device)
        in_head = slot < proposal.num_head[:, None]
        u = torch.where(in_head, uniforms[:, :1], uniforms)
        passed = u * scale < mass
        # The head comes after the tail: tail slots in order of drawing, then head slots.
        rank = torch.where(in_head, slot + slots, slot)
        first = torch.where(passed, rank, 2 * slots).argmin(dim=1)
        child = torch.where(passed.any(dim=1), first, -1)
        return Decision(child, first_threshold)

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Tensor:
        p = law.weights.double() / law.total[:, None]
        ids, listed = listed_tokens(proposal)
        slots = proposal.tokens.shape[1]
        tail_p = p.gather(1, ids[:, slots:])
        excess = (tail_p - proposal.tail_probs * decision.threshold[:, None]).clamp(min=0)
        left = torch.cat([torch.zeros_like(ids[:, :slots], dtype=p.dtype), excess], dim=1)
        # The smaller of p and what is left of it; unused entries hold infinity, which changes nothing.
        return p.scatter_reduce_(1, ids, torch.where(listed, left, torch.inf), "amin")


def accept_probability(law: TargetLaw, proposal: Proposal) -> Tensor:
    """Probability that each slot is kept, given that its turn comes: [B, K] float64.

    Tail slots have their turn in order of drawing. Then one draw settles the head: a head slot's
    figure is its share of that draw, so these add up, and what they lack of 1 is the correction's.
    """
    mass, scale, _ = _tests(law, proposal)
    kept = torch.where(scale > 0, mass / scale, 0.0).clamp(max=1)
    in_head = torch.arange(mass.shape[1], device=mass.device) < proposal.num_head[:, None]
    before = torch.nn.functional.pad(kept, (1, 0))[:, :-1]
    return torch.where(in_head, (kept - before).clamp(min=0), kept)


def _tests(law: TargetLaw, proposal: Proposal) -> tuple[Tensor, Tensor, Tensor]:
    """Every slot's test ``u * scale < mass`` ([B, K] each), and ``t_1`` [B].

    Head slots share one ``u``, so their masses are running sums over the head.
    """
    slots = proposal.tokens.shape[1]
    max_tail = slots if proposal.max_tail is None else min(slots, proposal.max_tail)
    if proposal.tail_ids.shape[1] == 0:
        max_tail = 0
    masses = split(law, proposal)
    head = torch.nn.functional.pad(masses.head.cumsum(1), (1, 0))  # [B, K + 1], from 0 to p(head)
    solved = solve_thresholds(
        masses.tail, proposal.tail_probs, head[:, -1], masses.outside, proposal.num_tail, max_tail
    )
    slot = torch.arange(slots, device=head.device)
    in_head = slot < proposal.num_head[:, None]
    mass = torch.where(in_head, head[:, 1:], 0.0)
    scale = solved.remainder[:, None].expand_as(mass)
    if max_tail > 0:
        test = slot - proposal.num_head[:, None]  # the slot's place among the tail draws
        in_tail = (test >= 0) & (test < proposal.num_tail[:, None])
        test = test.clamp(min=0, max=max_tail - 1)
        p = masses.tail.gather(1, proposal.tail_index)
        q = proposal.tail_probs.gather(1, proposal.tail_index)
        reserved = torch.minimum(p, q * solved.t.gather(1, test + 1))  # left for later siblings
        offered = torch.minimum(p, q * solved.t.gather(1, test))
        mass = torch.where(in_tail, offered - reserved, mass)
        scale = torch.where(in_tail, solved.reach.gather(1, test) * q, scale)
    return mass, scale, solved.t[:, 0]
