"""How fast the memory is, by copying it."""

from __future__ import annotations

import time

import torch

from resispec.models.device import device_for

_BYTES = 1 << 28  # far more than any cache holds, twice
_RUNS = 12


def copy_bandwidth(device: torch.device, size: int = _BYTES) -> float:
    """Bytes read and written in a second, the quickest of some copies of ``size`` bytes."""
    there = device_for(device)
    source = torch.ones(size // 8, dtype=torch.int64, device=device)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(_RUNS):
        there.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        there.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * size / min(seconds)
