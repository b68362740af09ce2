"""Sums over a tail's law that are piecewise linear in one number: sorted once, then a search each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pieces:
    """E, G and W as piecewise linear functions: sums over the tail in order of the kinks ``p / q``."""

    kinks: Tensor  # [B, M] ascending
    p_before: Tensor  # [B, M + 1]: sum of p over the first j tokens
    q_before: Tensor  # [B, M + 1]
    p_after: Tensor  # [B, M + 1]: sum of p over all but the first j tokens
    q_after: Tensor  # [B, M + 1]
    outside: Tensor  # [B, 1]: p off the tail's support, the head included

    @staticmethod
    def of(p: Tensor, q: Tensor, outside: Tensor) -> Pieces:
        kinks, order = torch.where(q > 0, p / q, torch.inf).sort(dim=1)
        p, q = p.gather(1, order), q.gather(1, order)
        return Pieces(kinks, _before(p), _before(q), _after(p), _after(q), outside[:, None])

    def segment(self, t: Tensor) -> Tensor:
        """How many kinks lie below each of ``t`` [B, N]."""
        return torch.searchsorted(self.kinks, t)

    def remainder(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """W and its derivative at ``t`` [B, 1]."""
        j = self.segment(t)
        slope = -self.q_after.gather(1, j)
        return (self.p_after.gather(1, j) + slope * t).clamp(min=0) + self.outside, slope

    def excess(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """E and its derivative at ``t`` [B, 1]."""
        j = self.segment(t)
        slope = self.q_before.gather(1, j)
        return (slope * t - self.p_before.gather(1, j)).clamp(min=0), slope

    def covered(self, t: Tensor) -> Tensor:
        """G at ``t`` [B, N]: only additions, so small values keep their relative precision."""
        j = self.segment(t)
        return self.p_before.gather(1, j) + self.q_after.gather(1, j) * t


def _before(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.cumsum(1), (1, 0))


def _after(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.flip(1).cumsum(1).flip(1), (0, 1))
