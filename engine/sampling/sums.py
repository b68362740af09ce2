"""Float64 sums over rows of float32 weights, without a float64 copy of the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from resispec.models.device import device_for


def row_sums(weights: Tensor) -> Tensor:
    """[B, V] of any floating dtype -> [B] float64, added in float64."""
    block = device_for(weights.device).row_block
    if block is None or weights.dtype == torch.float64:
        return weights.sum(dim=1, dtype=torch.float64)
    sums = weights.new_empty(weights.shape[0], dtype=torch.float64)
    buffer = weights.new_empty(block, weights.shape[1], dtype=torch.float64)
    for start in range(0, weights.shape[0], block):
        part = weights[start : start + block]
        wide = buffer[: part.shape[0]].copy_(part)
        torch.sum(wide, dim=1, out=sums[start : start + block])
    return sums


def row_sums_without(weights: Tensor, ids: Tensor, excluded: Tensor) -> Tensor:
    """Like `row_sums`, leaving out the columns ``ids`` where ``excluded``: added directly, not subtracted.

    ids: [B, M] int64 in [0, V); repeats are fine, and so is an id both excluded and not (it is left out).
    excluded: [B, M] bool.
    """
    values = torch.where(excluded, 0.0, torch.inf)  # with amin: 0 removes, infinity leaves as it is
    step = device_for(weights.device).row_block or max(1, weights.shape[0])
    sums = weights.new_empty(weights.shape[0], dtype=torch.float64)
    buffer = weights.new_empty(min(step, weights.shape[0]), weights.shape[1], dtype=torch.float64)
    for start in range(0, weights.shape[0], step):
        rows = slice(start, start + step)
        wide = buffer[: ids[rows].shape[0]].copy_(weights[rows])
        wide.scatter_reduce_(1, ids[rows], values[rows].double(), "amin")
        torch.sum(wide, dim=1, out=sums[rows])
    return sums
