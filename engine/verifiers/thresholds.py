"""The thresholds of exact residual shaping: one scalar equation a node, solved for all nodes at once.

A node has a target law ``p`` and a tail of ``n`` independent draws from ``q``; `resispec` says what the
thresholds are for. With ``E(t) = sum_T (q t - p)+`` and ``G(t) = sum_T min(p, q t)`` over the support
``T`` of ``q``, they obey::

    t_2 = t_1 - 1,    t_{i+1} = E(t_i) - W(t_1),    W(t_1) = p(head) + p(outside) + sum_T (p - q t_1)+

and ``t_1`` in ``[1, n]`` is the largest with ``t_{n+1} <= 0``. Every ``t_1`` with ``t_{n+1} <= 0`` gives
an exact rule, as long as ``W`` and ``w_i = G(t_i) + W`` follow from it: precision here buys acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from resispec.models.device import device_for

from .pieces import Pieces

# How t_1 is looked for: rounds of points over the bracket, then Newton steps from both of its ends. Two steps
# settled 6,000 random and steep nodes (vocabulary up to 600, up to 8 draws) to 1e-12; fewer would accept
# less, never bend the law.
_ROUNDS = 2
_POINTS = 32
_STEPS = 3
_AIM = 1e-15  # aimed below zero by this much: landing on the root's wrong side would stall the bracket


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The solution at ``B`` nodes for up to ``N`` tail draws. All float64."""

    t: Tensor  # [B, N + 1]: t_1 >= t_2 >= ..; 0 from t_{n+1} on
    remainder: Tensor  # [B]: W, the probability that every tail draw is refused
    reach: Tensor  # [B, N]: w_i, the probability that test i is reached (0 beyond the row's n)


def solve_thresholds(
    p_tail: Tensor, q_tail: Tensor, p_head: Tensor, p_outside: Tensor, num_tail: Tensor, max_tail: int
) -> Thresholds:
    """Solve for the thresholds of ``B`` nodes; nothing is read back to the host where that makes it wait.

    p_tail:    [B, M] float64, the target's law on the tail's tokens, 0 where ``q_tail`` is 0.
    q_tail:    [B, M] float64, the tail's law; rows sum to 1, or are 0 where ``num_tail`` is 0.
    p_head:    [B] float64, the target's mass on the head.
    p_outside: [B] float64, its mass off head and tail, summed directly (never as 1 minus the rest).
    num_tail:  [B] int64, draws of each row, at most ``max_tail``.
    """
    rows, elsewhere = p_tail.shape[0], p_head + p_outside
    n = num_tail[:, None]
    if max_tail == 0:
        empty = p_tail.new_zeros(rows, 1)
        return Thresholds(empty, elsewhere, empty[:, :0])
    if max_tail == 1:
        return _one_draw(p_tail, q_tail, elsewhere, n.to(torch.float64))
    if not device_for(p_tail.device).reads_freely:
        return _several_draws(p_tail, q_tail, elsewhere, n, max_tail)
    simple = _one_draw(p_tail, q_tail, elsewhere, n.clamp(max=1).to(torch.float64))
    wider = (0, max_tail - 1)
    solved = Thresholds(pad(simple.t, wider), simple.remainder, pad(simple.reach, wider))
    several = (num_tail > 1).nonzero()[:, 0]
    if len(several) > 0:
        found = _several_draws(p_tail[several], q_tail[several], elsewhere[several], n[several], max_tail)
        solved.t[several], solved.remainder[several] = found.t, found.remainder
        solved.reach[several] = found.reach
    return solved


def _several_draws(p_tail: Tensor, q_tail: Tensor, elsewhere: Tensor, n: Tensor, max_tail: int) -> Thresholds:
    """For any numbers of draws, up to ``max_tail``. n: [B, 1]."""
    pieces = Pieces.of(p_tail, q_tail, elsewhere)
    top = n.to(torch.float64)
    first = _solve_first(pieces, n, max_tail)
    first = torch.where(n > 1, first, top)  # one draw: t_1 = 1; none: 0

    excess = (p_tail - q_tail * first).clamp(min=0).sum(1, keepdim=True)
    remainder = excess + pieces.outside
    chain = [first, (first - 1).clamp(min=0)]
    for _ in range(2, max_tail + 1):
        following = (pieces.excess(chain[-1])[0] - remainder).clamp(min=0)
        chain.append(torch.minimum(following, chain[-1]))
    slots = torch.arange(max_tail + 1, device=n.device)
    t = torch.where(slots < n, torch.cat(chain, dim=1), 0.0)
    reach = torch.where(slots[:-1] < n, pieces.covered(t[:, :-1].contiguous()) + remainder, 0.0)
    return Thresholds(t, remainder[:, 0], reach)


def _one_draw(p_tail: Tensor, q_tail: Tensor, elsewhere: Tensor, n: Tensor) -> Thresholds:
    """Ordinary speculative sampling: ``t_1`` is 1. n: [B, 1], 0 or 1."""
    offered = torch.minimum(p_tail, q_tail * n)
    remainder = (p_tail - offered).sum(dim=1) + elsewhere
    reach = torch.where(n > 0, (offered.sum(dim=1) + remainder)[:, None], 0.0)
    return Thresholds(torch.cat([n, torch.zeros_like(n)], dim=1), remainder, reach)


def _solve_first(pieces: Pieces, n: Tensor, max_tail: int) -> Tensor:
    """The largest ``t_1`` in ``[1, n]`` with ``t_{n+1} <= 0``: [B, 1].

    ``t_{n+1}`` is piecewise linear, here convex, there concave. Points all over the bracket, looked at
    together, leave it so narrow that it holds a kink or two at most; Newton steps from both ends at once do
    the rest (from one end they may creep, or bounce on a kink for ever, and from the other be there soon).
    """
    high = n.to(torch.float64)
    low = high.clamp(max=1)  # always feasible
    ends = torch.cat(_bracket(pieces, low, high, n, max_tail), dim=1)
    value, slope = _last_threshold(pieces, ends, n, max_tail)
    for _ in range(_STEPS):
        newton = ends - (value + _AIM) / slope
        inside = (newton > ends[:, :1]) & (newton < ends[:, 1:])  # false for NaN, of a flat piece
        t = torch.where(inside, newton, ends.mean(dim=1, keepdim=True))
        values, slopes = _last_threshold(pieces, t, n, max_tail)
        t, values = torch.cat([ends, t], dim=1), torch.cat([value, values], dim=1)
        slopes = torch.cat([slope, slopes], dim=1)
        feasible = values <= 0
        low = torch.where(feasible, t, -torch.inf).argmax(dim=1)
        high = torch.where(feasible, torch.inf, t).argmin(dim=1)  # all feasible: the lowest, so nothing moves
        picked = torch.stack([low, high], dim=1)
        ends, value, slope = t.gather(1, picked), values.gather(1, picked), slopes.gather(1, picked)
    return torch.where(value[:, 1:] <= 0, ends.amax(dim=1, keepdim=True), ends[:, :1])


def _bracket(pieces: Pieces, low: Tensor, high: Tensor, n: Tensor, max_tail: int) -> tuple[Tensor, Tensor]:
    """Where ``t_{n+1}`` passes 0 between ``low`` and ``high``, both [B, 1]: a ``_POINTS``-th a round."""
    steps = torch.linspace(0, 1, _POINTS + 1, dtype=torch.float64, device=low.device)
    for _ in range(_ROUNDS):
        points = torch.lerp(low, high, steps)
        feasible = _last_threshold(pieces, points[:, 1:-1].contiguous(), n, max_tail)[0] <= 0
        last = feasible.sum(dim=1, keepdim=True)  # it never decreases, so these come first
        low, high = points.gather(1, last), points.gather(1, last + 1)
    return low, high


def _last_threshold(pieces: Pieces, t: Tensor, n: Tensor, max_tail: int) -> tuple[Tensor, Tensor]:
    """``t_{n+1}``, not clamped, and its derivative as functions of ``t_1 = t`` [B, N], for n >= 2."""
    remainder, remainder_slope = pieces.remainder(t)
    current, slope = t - 1, torch.ones_like(t)
    for i in range(2, max_tail + 1):
        excess, excess_slope = pieces.excess(current)
        following, its_slope = excess - remainder, excess_slope * slope - remainder_slope
        if i == 2:
            current, slope = following, its_slope
        else:
            active = i <= n
            current, slope = torch.where(active, following, current), torch.where(active, its_slope, slope)
    return current, slope
