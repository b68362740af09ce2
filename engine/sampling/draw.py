"""One token from each row of weights, by the inverse of the cumulative sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.models.device import device_for

from ..native import kernels_for


@dataclass(frozen=True, slots=True)
class Residual:
    """An unnormalised law: weights, of which some count for no more than their caps."""

    weights: Tensor  # [R, V] float32 or float64, >= 0
    ids: Tensor  # [R, M] int64 in [0, V); repeats are fine, the lowest cap holds
    caps: Tensor  # [R, M] float64, >= 0; infinity changes nothing

    @classmethod
    def of(cls, weights: Tensor) -> Residual:
        """All of the weights."""
        none = weights.new_empty(len(weights), 0, dtype=torch.float64)
        return cls(weights, none.long(), none)

    def dense(self) -> Tensor:
        """[R, V] float64; the weights themselves where nothing is capped and they are that already."""
        if self.ids.shape[1] == 0:
            return self.weights.double()
        wide = self.weights.to(torch.float64, copy=True)
        return wide.scatter_reduce_(1, self.ids, self.caps, "amin")


@dataclass(frozen=True, slots=True)
class Draw:
    tokens: Tensor  # [R] int64
    empty: Tensor  # [R] bool: the row's weights sum to 0, and its token means nothing


def draw(residual: Residual, uniforms: Tensor) -> Draw:
    """The first index whose cumulative sum, in float64, exceeds ``u`` times the total.

    uniforms: [R] float64 in [0, 1).
    A token of weight 0 is never drawn: it does not raise the cumulative sum, which has to exceed
    ``u * total`` strictly.
    """
    kernels = kernels_for(uniforms.device)
    if kernels is not None:
        return Draw(*kernels.draw(residual.weights, residual.ids, residual.caps, uniforms))
    return _draw_dense(residual.dense(), uniforms)


def _draw_dense(weights: Tensor, uniforms: Tensor) -> Draw:
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    tokens = tokens.clamp(max=weights.shape[1] - 1)
    # A parallel prefix sum need not be monotone to the last bit, so the search may stop a step astray.
    stray = weights.gather(1, tokens) <= 0
    if not device_for(weights.device).reads_freely or bool(stray.any()):
        tokens = torch.where(stray, weights.argmax(dim=1, keepdim=True), tokens)
    return Draw(tokens[:, 0], total[:, 0] <= 0)


def draw_or_fall_back(residual: Residual, fallback: Tensor, uniforms: Tensor) -> Draw:
    """Draw from ``residual``, or from ``fallback`` ([R, V] of any floating dtype) in rows that sum to 0.

    A correction whose mass rounds to 0 is impossible in exact arithmetic; ``empty`` marks the rows
    where it happened, to be counted.
    """
    if device_for(uniforms.device).reads_freely:
        drawn = draw(residual, uniforms)
        if not bool(drawn.empty.any()):
            return drawn
    weights = residual.dense()
    empty = weights.sum(dim=1) <= 0
    weights = torch.where(empty[:, None], fallback.double(), weights)
    return Draw(draw(Residual.of(weights), uniforms).tokens, empty)
