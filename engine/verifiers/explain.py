"""What a verifier's tests were, as numbers for people: one answer for all kinds of rules."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import AnyVerifier, Links, Proposal, TargetLaw
from .resispec import ResiSpecVerifier, solve
from .resispec_tree import ResiSpecTreeVerifier
from .spectr import SpecTrVerifier
from .trials import NodeRule, Trials


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of ``K`` slots at ``B`` nodes."""

    accept: Tensor  # [B, K] float64: probability to be kept when the slot's turn comes
    threshold: Tensor  # [B, K] float64: ``t_i`` or ``rho``; NaN where the rule has no such number
    uniform: Tensor  # [B, K] float64: the test's; NaN where the children of the slot's node decide
    turn: Tensor  # [B, K] int64: the order of the tests
    shared: Tensor  # [B, K] bool: one draw settles all of these, and the correction


def explain(
    verifier: AnyVerifier, law: TargetLaw, proposal: Proposal, links: Links, uniforms: Tensor
) -> Tests:
    """The tests that ``verifier`` made of ``proposal`` with ``uniforms`` ([B, K] float64).

    Raises TypeError for an unknown kind of rule.
    """
    slot = torch.arange(proposal.tokens.shape[1], device=proposal.tokens.device)
    if isinstance(verifier, ResiSpecTreeVerifier):
        accept = torch.zeros_like(proposal.tokens, dtype=torch.float64)
        for rows, level in zip(links.levels, verifier.trials(law, proposal, links), strict=True):
            accept[rows] = level.weight
        in_head = slot < proposal.num_head[:, None]
        none = torch.full_like(accept, torch.nan)
        uniform = torch.where(links.child_row >= 0, none, uniforms)
        turn = torch.where(in_head, slot + len(slot), slot)
        return Tests(accept, none, uniform, turn, torch.zeros_like(in_head))
    if not isinstance(verifier, NodeRule):
        raise TypeError(f"verifier {verifier.name!r} cannot be explained")
    trials = verifier.trials(law, proposal)
    threshold = _thresholds(verifier, law, proposal, trials)
    uniform = torch.where(trials.in_head, uniforms[:, :1], uniforms)
    turn = torch.where(trials.in_head, len(slot), slot)
    return Tests(trials.accept_probability(), threshold, uniform, turn, trials.in_head)


def _thresholds(verifier: NodeRule, law: TargetLaw, proposal: Proposal, trials: Trials) -> Tensor:
    none = torch.full_like(trials.mass, torch.nan)
    if isinstance(verifier, SpecTrVerifier):
        return torch.where(trials.in_head, none, trials.threshold[:, None])
    if not isinstance(verifier, ResiSpecVerifier):
        return none
    _, solved = solve(law, proposal)
    slot = torch.arange(none.shape[1], device=none.device)
    test = slot - proposal.num_head[:, None]
    in_tail = (test >= 0) & (test < proposal.num_tail[:, None])
    return torch.where(in_tail, solved.t.gather(1, test.clamp(0, solved.t.shape[1] - 1)), none)
