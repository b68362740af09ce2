"""Rows of a KV memory are moved in all layers, every source read before a destination is written."""

from __future__ import annotations

import pytest
import torch

from resispec.models.device.cpu import CpuDevice
from resispec.models.kv import KVGeometry, KVMemory

ROWS = 40


@pytest.mark.parametrize("runs_native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [2, 512])  # few bytes, and enough for several threads
def test_moves_read_before_they_write(
    monkeypatch: pytest.MonkeyPatch, runs_native: bool, dtype: torch.dtype, heads: int
) -> None:
    monkeypatch.setattr(CpuDevice, "runs_native", runs_native)
    memory = KVMemory(KVGeometry(3, heads, 24, 17, 8, dtype), ROWS, torch.device("cpu"), keep_hidden=True)
    generator = torch.Generator().manual_seed(0)
    for pool in (memory.keys, memory.values):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    before = memory.keys.clone(), memory.values.clone()
    moves = {5: 6, 6: 5, 7: 20, 20: 21, 39: 0, **{row: row + 1 for row in range(24, 38)}}
    memory.move_rows(torch.tensor(list(moves)), torch.tensor(list(moves.values())))
    origin = list(range(ROWS))
    for source, destination in moves.items():
        origin[destination] = source
    for pool, old in zip((memory.keys, memory.values), before, strict=True):
        assert torch.equal(pool, old[:, origin])
        assert not torch.equal(pool, old)
