"""One token from each row of weights, by the inverse of the cumulative sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.models.device import device_for


@dataclass(frozen=True, slots=True)
class Draw:
    tokens: Tensor  # [R] int64
    empty: Tensor  # [R] bool: the row's weights sum to 0, and its token means nothing


def draw(weights: Tensor, uniforms: Tensor) -> Draw:
    """Draw from unnormalised laws: the first index whose cumulative sum exceeds ``u`` times the total.

    weights: [R, V] float64, >= 0. uniforms: [R] float64 in [0, 1).
    A token of weight 0 is never drawn: it does not raise the cumulative sum, which has to exceed
    ``u * total`` strictly.
    """
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    tokens = tokens.clamp(max=weights.shape[1] - 1)
    # A parallel prefix sum need not be monotone to the last bit, so the search may stop a step astray.
    stray = weights.gather(1, tokens) <= 0
    if not device_for(weights.device).reads_freely or bool(stray.any()):
        tokens = torch.where(stray, weights.argmax(dim=1, keepdim=True), tokens)
    return Draw(tokens[:, 0], total[:, 0] <= 0)


def draw_or_fall_back(weights: Tensor, fallback: Tensor, uniforms: Tensor) -> Draw:
    """Draw from ``weights``, or from ``fallback`` ([R, V] of any floating dtype) in rows that sum to 0.

    A correction whose mass rounds to 0 is impossible in exact arithmetic; ``empty`` marks the rows
    where it happened, to be counted.
    """
    if device_for(weights.device).reads_freely:
        drawn = draw(weights, uniforms)
        if not bool(drawn.empty.any()):
            return drawn
    empty = weights.sum(dim=1) <= 0
    weights = torch.where(empty[:, None], fallback.double(), weights)
    return Draw(draw(weights, uniforms).tokens, empty)
