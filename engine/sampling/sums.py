"""Float64 sums over rows of float32 weights, without a float64 copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from resispec.models.device import device_for

from ..native import kernels_for


def row_blocks(rows: Tensor) -> Iterator[slice]:
    """Slices of the ``rows`` [B, ..], as many at a time as the device's caches like; no rows: none."""
    size = device_for(rows.device).row_block or max(1, rows.shape[0])
    for start in range(0, rows.shape[0], size):
        yield slice(start, start + size)


def row_sums(weights: Tensor) -> Tensor:
    """[B, V] of any floating dtype -> [B] float64, added in float64."""
    kernels = kernels_for(weights.device)
    if kernels is not None:
        none = weights.new_empty(len(weights), 0)
        return kernels.sums(weights, none.long(), none.bool())
    if weights.dtype == torch.float64:
        return weights.sum(dim=1)
    sums = weights.new_empty(weights.shape[0], dtype=torch.float64)
    for rows in row_blocks(weights):
        sums[rows] = weights[rows].double().sum(dim=1)
    return sums


def row_sums_without(weights: Tensor, ids: Tensor, excluded: Tensor) -> Tensor:
    """Like `row_sums`, leaving out the columns ``ids`` where ``excluded``: added directly, not subtracted.

    ids: [B, M] int64 in [0, V); repeats are fine, and so is an id both excluded and not (it is left out).
    excluded: [B, M] bool.
    """
    kernels = kernels_for(weights.device)
    if kernels is not None:
        return kernels.sums(weights, ids, excluded)
    values = torch.where(excluded, 0.0, torch.inf)  # with amin: 0 removes, infinity leaves as it is
    sums = weights.new_empty(weights.shape[0], dtype=torch.float64)
    for rows in row_blocks(weights):
        wide = weights[rows].to(torch.float64, copy=True)
        wide.scatter_reduce_(1, ids[rows], values[rows].double(), "amin")
        sums[rows] = wide.sum(dim=1)
    return sums
