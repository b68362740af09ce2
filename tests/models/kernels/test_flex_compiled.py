"""FlexAttention as it is compiled: here for the CPU, by the same compiler that writes a GPU's kernels."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs
from resispec.models.device.cpu import CpuDevice
from resispec.models.kernels import flex
from resispec.models.kv import FLEX, KVGeometry, KVMemory

CPU = torch.device("cpu")
ROWS, HEADS, KV_HEADS, DIM = 1000, 4, 2, 32


def step_of(shapes: list[tuple[int, int]], tree: bool) -> StepInputs:
    """shapes: of each request, its tokens and the rows it sees. tree: they see themselves and the prefix."""
    segments: list[Segment] = []
    positions: list[int] = []
    rows: list[int] = []
    start = 0
    for length, kv_length in shapes:
        mask = torch.eye(length, dtype=torch.bool) if tree else None
        segments.append(Segment(len(positions), length, start, kv_length, mask))
        positions += range(kv_length - length, kv_length)
        rows += range(start + kv_length - length, start + kv_length)
        start += kv_length + 3
    count = len(positions)
    return StepInputs(
        torch.zeros(count, dtype=torch.long),
        torch.tensor(positions),
        torch.tensor(rows),
        tuple(segments),
        torch.arange(count),
    )


STEPS: list[tuple[list[tuple[int, int]], bool, int | None]] = [
    ([(1, 30)], False, None),
    ([(5, 40), (5, 60)], True, None),
    ([(7, 40), (9, 60), (1, 100)], True, None),
    ([(17, 40), (17, 60), (17, 300)], True, None),
    ([(20, 200)], False, None),
    ([(160, 400)], False, None),
    ([(3, 200)], False, 50),
    ([(30, 200)], True, 50),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, when it is first imported
@pytest.mark.filterwarnings("ignore:Distutils was imported before Setuptools")  # by another test
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU takes a C++ compiler")
def test_few_kernels_serve_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "generates_kernels", True)
    counter = CompileCounterWithBackend("inductor")
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_(function, backend=counter, **options)
    )
    flex._compiled.cache_clear()
    torch.manual_seed(0)
    geometry = KVGeometry(1, KV_HEADS, DIM, DIM, 8, torch.float32)
    memory, other = KVMemory(geometry, ROWS, CPU, attention=FLEX), KVMemory(geometry, ROWS, CPU)
    other.keys.copy_(memory.keys.normal_())
    other.values.copy_(memory.values.normal_())
    try:
        with torch.inference_mode():
            for shapes, tree, window in STEPS:
                inputs = step_of(shapes, tree)
                query = torch.randn(inputs.token_ids.shape[0], HEADS, DIM)
                ours = StepContext(memory, inputs).attend(query, 0, 0.2, window)
                plain = StepContext(other, inputs).attend(query, 0, 0.2, window)
                torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    finally:
        flex._compiled.cache_clear()
    assert 1 <= counter.frame_count < len(STEPS)  # one token or more, a block or more, windows or not
