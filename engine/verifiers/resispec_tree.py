"""Exact residual shaping with joint decisions down the tree: a child's coin waits for its own children.

A child that is little needed may still be kept when its children fit well. `joint` has the rule of one
level; every node's weight depends on its parent's laws alone, so weights are found from the root down, a
level in one call, coins are settled from the leaves up, and the walk follows what was settled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drawing import Drawing
from ..sampling.draw import Residual
from .base import Decision, Links, Proposal, TargetLaw, TreeVerifier
from .fit import require_fit
from .joint import JointTrials, joint_trials
from .masses import split
from .resispec import ResiSpecVerifier


class ResiSpecTreeVerifier(TreeVerifier):
    """Any head, any tail; equal draws need a node each."""

    name = "resispec-tree"
    drawing = Drawing.HEAD_AND_TAIL
    fits = frozenset({Drawing.HEAD, Drawing.HEAD_AND_TAIL, Drawing.INDEPENDENT, Drawing.CHAIN})

    def __init__(self) -> None:
        self._rule = ResiSpecVerifier()

    def decide_tree(self, law: TargetLaw, proposal: Proposal, links: Links, uniforms: Tensor) -> Decision:
        trials = self.trials(law, proposal, links)
        size = len(law.weights)
        coin = uniforms.new_zeros(size + 1)
        coin.scatter_(0, _rows_of_slots(links, size).flatten(), uniforms.flatten())
        accepted = torch.zeros_like(coin, dtype=torch.bool)
        child = torch.full_like(proposal.num_head, -1)
        threshold = uniforms.new_zeros(size)
        for rows, level in zip(reversed(links.levels), reversed(trials), strict=True):
            below = links.child_row[rows]
            kept = torch.where(below >= 0, accepted[below], uniforms[rows] < level.weight)
            first = _first(kept, proposal.num_head[rows])
            corrected = coin[rows] * level.correction_scale < level.correction
            accepted[rows] = (first >= 0) | corrected
            child[rows] = first
            threshold[rows] = level.threshold
        return Decision(child, threshold)

    def trials(self, law: TargetLaw, proposal: Proposal, links: Links) -> list[JointTrials]:
        """What every node asks of its children: of each of the levels in turn."""
        require_fit(self, proposal)
        masses = split(law, proposal)
        size = len(law.weights)
        rows_of_slots = _rows_of_slots(links, size)
        omega = masses.outside.new_ones(size + 1)
        trials: list[JointTrials] = []
        for rows in links.levels:
            level = joint_trials(masses.rows(rows), proposal.rows(rows), omega[rows], links.even[rows])
            omega.scatter_(0, rows_of_slots[rows].flatten(), level.weight.flatten())
            trials.append(level)
        return trials

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        """As that of `resispec`: ``threshold`` is ``t_1 / omega``, so ``omega`` cancels."""
        return self._rule.residual(law, proposal, decision)


def _rows_of_slots(links: Links, size: int) -> Tensor:
    """[B, K]: as ``child_row``, with an entry of its own behind the rows for slots that have none."""
    return torch.where(links.child_row >= 0, links.child_row, size)


def _first(kept: Tensor, num_head: Tensor) -> Tensor:
    """The first slot kept, tail before head: [B] int64; -1: none."""
    slots = kept.shape[1]
    if slots == 0:
        return torch.full_like(num_head, -1)
    slot = torch.arange(slots, device=kept.device)
    rank = torch.where(slot < num_head[:, None], slot + slots, slot)
    first = torch.where(kept, rank, 2 * slots).argmin(dim=1)
    return torch.where(kept.any(dim=1), first, -1)
