"""One level of joint decisions down a tree: what each child must accept, before any uniform is thrown.

A node is entered with a *weight* ``omega``: the share of all that arrives there that it must accept; the
root's is 1. It asks its children in turn for shares of their own, so that it accepts ``omega p(v)`` for
every token ``v``, whether a child is a leaf, which throws a coin, or looks at its own children first.

The shares are those of exact residual shaping (`resispec`) with ``omega p`` in place of ``p``, the mass
``1 - omega`` that must fail counting as never acceptable. Where what hangs below a node's draws differs
from slot to slot, ``t_i = omega t_i(1)`` is used instead, with ``t(1)`` the thresholds of ``omega = 1``: the
thresholds of ``omega p`` could there accept less than one decision a node does; these never do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Proposal
from .masses import Masses
from .resispec import tail_tests
from .thresholds import Thresholds, solve_thresholds
from .trials import max_tail


@dataclass(frozen=True, slots=True)
class JointTrials:
    """Of ``B`` nodes with ``K`` slots. All float64.

    Children are asked in turn: tail slots in order of drawing, then head slots. If none accepts, the node
    accepts with a correction if ``u * correction_scale < correction``, else it fails.
    """

    weight: Tensor  # [B, K]: a child's weight; what a leaf accepts with; 0 in inert slots
    correction: Tensor  # [B]
    correction_scale: Tensor  # [B]
    threshold: Tensor  # [B]: t_1 / omega, for `ResiSpecVerifier.residual`


def joint_trials(masses: Masses, proposal: Proposal, omega: Tensor, even: Tensor) -> JointTrials:
    """omega: [B] float64 in [0, 1], the nodes' weights. even: [B] bool, see `Links`."""
    whole = omega[:, None]
    head, tail, outside = masses.head * whole, masses.tail * whole, masses.outside * omega
    solved = _thresholds(masses, proposal, omega, even)
    first = solved.t[:, :1]
    correction = outside + (tail - proposal.tail_probs * first).clamp(min=0).sum(dim=1)
    # A head slot is reached with what fails, what is left to the head slots from it on, and the correction.
    offered = head.flip(1).cumsum(1).flip(1)
    scale = (1 - whole) + offered + correction[:, None]
    slot = torch.arange(head.shape[1], device=head.device)
    mass = torch.where(slot < proposal.num_head[:, None], head, 0.0)
    if solved.reach.shape[1] > 0:
        in_tail, test, tail_mass, q = tail_tests(proposal, tail, solved.t)
        mass = torch.where(in_tail, tail_mass, mass)
        scale = torch.where(in_tail, solved.reach.gather(1, test) * q, scale)
    weight = torch.where(scale > 0, mass / scale, 0.0).clamp(min=0, max=1)
    relative = torch.where(omega > 0, first[:, 0] / omega, 0.0)
    return JointTrials(weight, correction, 1 - omega + correction, relative)


def _thresholds(masses: Masses, proposal: Proposal, omega: Tensor, even: Tensor) -> Thresholds:
    """Of ``omega p``; of ``p``, times ``omega``, at nodes that are not even."""
    solved_for = torch.where(even, omega, 1.0)
    head_total = masses.head.sum(dim=1)
    solved = solve_thresholds(
        masses.tail * solved_for[:, None],
        proposal.tail_probs,
        (1 - solved_for) + head_total * solved_for,
        masses.outside * solved_for,
        proposal.num_tail,
        max_tail(proposal),
    )
    factor = torch.where(even, 1.0, omega)
    fails = 1 - factor
    return Thresholds(
        solved.t * factor[:, None],
        fails + factor * solved.remainder,
        fails[:, None] + factor[:, None] * solved.reach,
    )
