"""The compiled kernels against the same arithmetic in float64."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from resispec.models.native import NativeKernels, native_kernels
from resispec.models.native.library import best_built

DTYPES = [torch.float32, torch.bfloat16]
# One rounding to the dtype, and what float32 loses inside.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


@pytest.fixture
def kernels() -> NativeKernels:
    found = native_kernels()
    if found is None:
        pytest.skip("no kernels were built")
    return found


def close(ours: Tensor, exact: Tensor) -> None:
    bound = TOLERANCE[ours.dtype] * exact.abs().clamp_min(exact.abs().mean())
    assert ((ours.double() - exact).abs() <= bound).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_kernels_are_there_where_they_can_be_built() -> None:
    assert native_kernels() is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 7), (3, 16), (16, 576), (200, 600)])
def test_rms_norm(kernels: NativeKernels, threads: int, rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    x, weight = (torch.randn(rows, size) * 5).to(dtype), torch.randn(size)
    exact = F.rms_norm(x.double(), (size,), weight.double(), 1e-5)
    close(kernels.rms_norm(x, weight, 1e-5), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 7), (3, 16), (16, 1536), (100, 520)])
def test_silu_mul(kernels: NativeKernels, threads: int, rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    both = (torch.randn(rows, 2 * size) * 10).to(dtype)
    gate, up = both.double().chunk(2, dim=-1)
    close(kernels.silu_mul(both), F.silu(gate) * up)


def test_silu_of_extremes_is_a_number(kernels: NativeKernels) -> None:
    gate = torch.tensor([[-3e38, -1e4, -88.0, -0.0, 0.0, 88.0, 1e4, 3e38]])
    ours = kernels.silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(ours, torch.tensor([[0.0, 0, 0, 0, 0, 88, 1e4, 3e38]]))


def test_what_is_no_number_stays_none(kernels: NativeKernels) -> None:
    for dtype in DTYPES:
        x = torch.full((1, 20), torch.nan, dtype=dtype)
        assert kernels.rms_norm(x, torch.ones(20), 1e-5).isnan().all()
        assert kernels.silu_mul(torch.cat([x, x], dim=1)).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "dim"), [(1, 4), (3, 64), (70, 80)])
def test_rotate(kernels: NativeKernels, threads: int, tokens: int, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    heads, kv_heads = 6, 2
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
    angles = torch.randn(tokens, 1, dim // 2).double() * 10
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    rows = torch.randperm(100)[:tokens]
    pools = torch.randn(2, 100, kv_heads, dim).to(dtype)
    expected = pools.clone()

    first, second = qkv.double().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    values = qkv[:, -kv_heads:].clone()
    kernels.rotate(
        qkv, torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), rows, pools[0], pools[1]
    )
    close(qkv[:, :heads], turned[:, :heads])
    close(pools[0, rows], turned[:, heads : heads + kv_heads])
    expected[0, rows], expected[1, rows] = pools[0, rows], values
    assert torch.equal(pools, expected), "no other row is touched"


Segments = list[tuple[int, int, int]]  # tokens, rows, columns of a mask or 0


def attended(
    kernels: NativeKernels,
    segments: Segments,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """What the kernel gives and what it should."""
    rng = random.Random(str(segments))
    torch.manual_seed(len(segments))
    count = sum(length for length, *_ in segments)
    rows = sum(kv_length + 3 for _, kv_length, _ in segments)
    keys, values = (torch.randn(rows, kv_heads, dim).to(dtype) for _ in range(2))
    wide = torch.randn(count, heads + 5, dim).to(dtype)
    query = wide[:, :heads]  # tokens lie further apart than their heads take
    positions = torch.cat([torch.arange(kv - length, kv) for length, kv, _ in segments])
    table, masks, exact = [], [], []
    start = kv_start = 0
    for length, kv_length, columns in segments:
        kv_start += 3
        row = torch.arange(kv_length)
        seen = row <= positions[start : start + length, None]
        mask = None
        if columns:
            mask = torch.tensor(
                [[rng.random() < 0.5 or i == j for j in range(columns)] for i in range(length)]
            )
            seen = torch.cat([torch.ones(length, kv_length - columns, dtype=torch.bool), mask], dim=1)
            masks.append(mask)
        if window is not None:
            seen = seen & (row > positions[start : start + length, None] - window)
        table.append([start, length, kv_start, kv_length, 0 if mask is None else mask.data_ptr(), columns])
        own = [
            pool[kv_start : kv_start + kv_length].double().repeat_interleave(heads // kv_heads, 1)
            for pool in (keys, values)
        ]
        scores = torch.einsum("nhd,rhd->hnr", query[start : start + length].double(), own[0]) * 0.3
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        exact.append(torch.einsum("hnr,rhd->nhd", weights, own[1]))
        start, kv_start = start + length, kv_start + kv_length
    out = torch.full((count, heads, dim), torch.nan, dtype=dtype)
    kernels.attend(out, query, keys, values, torch.tensor(table), positions, 0.3, window)
    return out, torch.cat(exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(9, 3, 64), (4, 4, 24), (8, 1, 128), (5, 1, 256), (6, 2, 90), (4, 4, 32), (7, 1, 96)],
)
def test_attend(
    kernels: NativeKernels,
    threads: int,
    heads: int,
    kv_heads: int,
    dim: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    assert kernels.attends(dtype, dim)
    segments = [(1, 1, 0), (1, 100, 0), (5, 60, 5), (40, 70, 0), (3, 1100, 3), (17, 600, 0), (2, 33, 33)]
    ours, exact = attended(kernels, segments, heads, kv_heads, dim, dtype, window)
    assert (ours.double() - exact).abs().max() <= 4 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_do_not_overflow(kernels: NativeKernels, dtype: torch.dtype) -> None:
    keys = torch.full((40, 1, 64), 300.0, dtype=dtype)
    keys[7] *= -1
    values = torch.randn(40, 1, 64).to(dtype)
    query = torch.full((1, 1, 64), 300.0, dtype=dtype)
    for sign in (1.0, -1.0):
        out = torch.empty(1, 1, 64, dtype=dtype)
        table, positions = torch.tensor([[0, 1, 0, 40, 0, 0]]), torch.tensor([39])
        kernels.attend(out, query * sign, keys, values, table, positions, 1.0, None)
        exact = values[7] if sign < 0 else torch.cat([values[:7], values[8:]]).float().mean(0).to(dtype)
        torch.testing.assert_close(out[0], exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_numbers(kernels: NativeKernels, dtype: torch.dtype) -> None:
    """Whoever sees one gets none; nobody else is touched."""
    keys, values = torch.randn(80, 2, 64).to(dtype), torch.randn(80, 2, 64).to(dtype)
    values[50, 0, 3] = torch.nan
    query, out = torch.randn(2, 4, 64).to(dtype), torch.empty(2, 4, 64, dtype=dtype)
    table = torch.tensor([[0, 1, 0, 40, 0, 0], [1, 1, 40, 40, 0, 0]])
    kernels.attend(out, query, keys, values, table, torch.tensor([39, 39]), 0.2, None)
    assert out[0].isfinite().all()
    assert out[1, :2, 3].isnan().all()
    assert out[1, 2:].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_gets_the_same_bits_in_any_company(
    kernels: NativeKernels, threads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(3000, 2, 32).to(dtype), torch.randn(3000, 2, 32).to(dtype)
    query = torch.randn(12, 4, 32).to(dtype)
    table = torch.tensor([[0, 1, 5, 1400, 0, 0], [1, 10, 1500, 700, 0, 0], [11, 1, 2300, 9, 0, 0]])
    positions = torch.tensor([1399, *range(690, 700), 8])
    together, alone = torch.empty(12, 4, 32, dtype=dtype), torch.empty(12, 4, 32, dtype=dtype)
    kernels.attend(together, query, keys, values, table, positions, 0.2, None)
    torch.set_num_threads(1)
    for own in table:
        kernels.attend(alone, query, keys, values, own[None], positions, 0.2, None)
    assert torch.equal(together, alone)


def test_a_library_of_older_sources(tmp_path: Path) -> None:
    """One without a kernel that is asked for is as good as none: torch does its work."""
    (tmp_path / "_base.so").touch()

    def load(path: Path) -> str:
        raise AttributeError(f"{path}: undefined symbol")

    assert best_built(tmp_path, load) is None
