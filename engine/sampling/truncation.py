"""top_k, top_p and min_p, as one cutoff a row: tokens of smaller weight are dropped, equal ones all kept.

A cutoff by value makes ties harmless: whether a token is kept depends on its own weight, never on the
order a sort leaves equal weights in.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from resispec.models.device import device_for

from .sums import row_sums

_CPU_SIZES = (256, 4096)  # of the largest weights, looked at before a row is sorted in full


def truncation_cutoff(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest weight that ``top_k``, then ``top_p`` of what it left, keep in each row: [P].

    weights: [P, V] float32, >= 0. top_k: [P] int64, V where off. top_p: [P] float64 in (0, 1].
    ``top_p`` keeps the fewest of the largest weights that reach its share of the mass.

    On a CPU most rows are settled by a few hundred of their largest weights and only the others are
    sorted in full, which reads flags on the host; elsewhere all rows are sorted and nothing is read.
    """
    vocab = weights.shape[1]
    reads_freely = device_for(weights.device).reads_freely
    sizes = [size for size in _CPU_SIZES if size < vocab] if reads_freely else []
    cutoff = weights.new_zeros(weights.shape[0])
    total = row_sums(weights)
    pending = torch.arange(weights.shape[0], device=weights.device)
    for size in sizes:
        rows = slice(None) if pending.shape[0] == weights.shape[0] else pending
        best = weights[rows].topk(size, dim=1).values
        found, settled = _cutoff_among(best, total[pending], top_k[pending], top_p[pending], vocab)
        cutoff[pending] = found
        pending = pending[~settled]
        if pending.shape[0] == 0:
            return cutoff
    best = _sorted_down(weights[pending])
    cutoff[pending] = _cutoff_among(best, total[pending], top_k[pending], top_p[pending], vocab)[0]
    return cutoff


def _cutoff_among(
    best: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor, vocab: int
) -> tuple[Tensor, Tensor]:
    """The cutoff [P] from each row's largest weights ``best`` [P, C], and whether C of them were enough."""
    size = best.shape[1]
    last = (top_k.clamp(max=size) - 1)[:, None]
    smallest = best.gather(1, last)  # of the k largest
    cumulative = torch.where(best >= smallest, best, 0.0).double().cumsum(dim=1)
    limited = top_k < vocab
    mass = torch.where(limited, cumulative[:, -1], total)
    # top_p = 1 asks for all of the mass, which the sum in another order may miss by a rounding.
    needed = torch.where(top_p < 1, top_p * mass, cumulative[:, -1])
    index = torch.searchsorted(cumulative, needed[:, None]).clamp(max=size - 1)
    enough = torch.where(limited, best[:, -1] < smallest[:, 0], cumulative[:, -1] >= needed)
    return best.gather(1, torch.minimum(index, _last_kept(best, smallest)))[:, 0], enough


def _sorted_down(weights: Tensor) -> Tensor:
    if not device_for(weights.device).reads_freely:
        return weights.sort(dim=1, descending=True).values
    return torch.from_numpy(np.sort(weights.numpy(), axis=1)).flip(1)  # three times as fast as torch's


def _last_kept(best: Tensor, smallest: Tensor) -> Tensor:
    """The last index [P, 1] whose weight is at least ``smallest`` in the descending ``best``."""
    return ((best >= smallest).sum(dim=1, keepdim=True) - 1).clamp(min=0)  # a NaN row: 0
