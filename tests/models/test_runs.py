"""Attention over the KV memory against a dense one written out, however the segments are grouped."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs
from resispec.models.graphs.bucket import bucket_for
from resispec.models.graphs.buffers import StepBuffers
from resispec.models.kv import FLEX, ROWS, SEGMENTS, KVGeometry, KVMemory
from resispec.models.prompt_attention import PromptAttention
from resispec.models.runs import plan_runs

CPU = torch.device("cpu")
KV_HEADS, GROUPS, KEY_DIM, VALUE_DIM = 2, 3, 4, 6


def memory_of(rows: int, value_dim: int = VALUE_DIM) -> KVMemory:
    memory = KVMemory(KVGeometry(1, KV_HEADS, KEY_DIM, value_dim, 8, torch.float32), rows, CPU)
    memory.keys.normal_()
    memory.values.normal_()
    return memory


def step_of(rng: random.Random, shapes: list[tuple[int, int, bool]], rows: int) -> StepInputs:
    """shapes: of each segment, its tokens, the rows it sees, whether it is a tree. Requests lie apart."""
    segments: list[Segment] = []
    positions: list[int] = []
    written: list[int] = []
    start = kv_start = 0
    for length, kv_length, tree in shapes:
        kv_start += rng.randrange(5)
        mask = None
        if tree:
            mask = torch.ones(length, kv_length, dtype=torch.bool)
            drawn = [[j == i or (j < i and rng.random() < 0.5) for j in range(length)] for i in range(length)]
            mask[:, kv_length - length :] = torch.tensor(drawn)
        segments.append(Segment(start, length, kv_start, kv_length, mask))
        positions += range(kv_length - length, kv_length)
        written += range(kv_start + kv_length - length, kv_start + kv_length)
        start, kv_start = start + length, kv_start + kv_length
    assert kv_start <= rows
    return StepInputs(
        torch.zeros(start, dtype=torch.long),
        torch.tensor(positions),
        torch.tensor(written),
        tuple(segments),
        torch.arange(start),
    )


def with_short_masks(inputs: StepInputs) -> StepInputs:
    """Masks without the columns in which everything is seen."""
    segments = tuple(
        segment if segment.mask is None else replace(segment, mask=segment.mask[:, -segment.length :])
        for segment in inputs.segments
    )
    return replace(inputs, segments=segments)


def attended(how: str, query: Tensor, memory: KVMemory, inputs: StepInputs, window: int | None) -> Tensor:
    if how != "gathered":
        memory.attention = how
        return StepContext(memory, inputs).attend(query, 0, 0.5, window)
    bucket = bucket_for(inputs, SEGMENTS)
    assert bucket is not None, "only short segments are gathered"
    buffers = StepBuffers(bucket, memory, memory.num_rows - 1, None)
    buffers.fill(inputs)
    padding = torch.randn(bucket.tokens - query.shape[0], *query.shape[1:])
    padded = torch.cat([query, padding])
    return StepContext(memory, buffers.inputs).attend(padded, 0, 0.5, window)[: query.shape[0]]


def dense(query: Tensor, memory: KVMemory, inputs: StepInputs, window: int | None) -> Tensor:
    """One query head of one token at a time."""
    output = torch.zeros(query.shape[0], query.shape[1], memory.geometry.value_dim)
    for segment in inputs.segments:
        for offset in range(segment.length):
            token = segment.start + offset
            position = int(inputs.positions[token])
            for head in range(query.shape[1]):
                seen = [
                    row
                    for row in range(segment.kv_length)
                    if (
                        bool(segment.mask[offset, row])
                        if segment.mask is not None
                        else row <= segment.kv_length - segment.length + offset
                    )
                    and (window is None or row > position - window)
                ]
                rows = torch.tensor(seen) + segment.kv_start
                keys = memory.keys[0, rows, head // GROUPS]
                weights = (keys @ query[token, head] * 0.5).softmax(0)
                output[token, head] = weights @ memory.values[0, rows, head // GROUPS]
    return output


SHAPES = {
    "one token": [(1, 9, False)],
    "one chunk": [(6, 9, False)],
    "one tree": [(5, 9, True)],
    "tokens of like lengths": [(1, 30, False), (1, 25, False), (1, 31, False)],
    "tokens of unlike lengths": [(1, 90, False), (1, 5, False), (1, 4, False), (1, 80, False)],
    "trees": [(5, 20, True), (5, 22, True), (3, 20, True), (3, 9, True)],
    "chunks and trees": [(1, 9, False), (3, 20, False), (2, 22, False), (4, 25, True), (3, 18, True)],
    "everything": [(12, 20, False), (1, 8, False), (1, 9, False), (4, 9, True), (4, 10, True), (9, 18, True)],
    "long chunks": [(40, 300, False), (1, 8, False), (170, 256, False), (33, 270, True)],
}


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(
    ("how", "name"),
    [
        *itertools.product([ROWS, SEGMENTS, FLEX], SHAPES),
        *(("gathered", name) for name, shapes in SHAPES.items() if max(length for length, *_ in shapes) < 64),
    ],
)
def test_attention(how: str, name: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    rng = random.Random(name)
    torch.manual_seed(1)
    memory = memory_of(900, KEY_DIM if how == ROWS else VALUE_DIM)
    inputs = step_of(rng, SHAPES[name], 900)
    query = torch.randn(inputs.token_ids.shape[0], KV_HEADS * GROUPS, KEY_DIM)
    expected = dense(query, memory, inputs, window)
    for step in (inputs, with_short_masks(inputs)):
        ours = attended(how, query, memory, step, window)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_long_chunks_are_attended_in_blocks() -> None:
    inputs = step_of(random.Random(0), [(32, 256, False), (31, 400, False), (40, 255, False)], 1000)
    for window, expected in ((None, [True, False, False]), (255, [False] * 3), (256, [True, False, False])):
        runs = plan_runs(inputs, window, GROUPS, torch.bfloat16)
        assert [run.in_blocks for run in runs] == expected
        assert all(run.in_blocks == (run.bias is None) for run in runs)
    assert not any(run.in_blocks for run in plan_runs(inputs, None, GROUPS, torch.float64))


@pytest.mark.parametrize("length", [32, 128, 129, 300])
def test_blocks_round_no_more_than_eager_attention(length: int) -> None:
    """In bfloat16, on a memory that held other numbers, against the same numbers in float64."""
    torch.manual_seed(length)
    total = length + 77
    query = torch.randn(length, 6, 64).bfloat16()
    keys, values = (torch.randn(total, 2, 64).bfloat16().transpose(0, 1) for _ in range(2))
    blocks = PromptAttention()
    blocks.attend(query, keys + 3, values, 1.0)
    ours = blocks.attend(query, keys, values, 0.3).double()

    past = torch.arange(total) <= torch.arange(total - length, total)[:, None]
    keys, values = (part.repeat_interleave(3, 0) for part in (keys, values))
    exact = scaled_dot_product_attention(
        query.transpose(0, 1).double(), keys.double(), values.double(), attn_mask=past, scale=0.3
    )
    scores = (query.transpose(0, 1) @ keys.transpose(1, 2) * 0.3).masked_fill(~past, float("-inf"))
    eager = scores.softmax(-1, dtype=torch.float32).bfloat16() @ values
    error = (ours - exact.transpose(0, 1)).norm()
    assert error < 1.05 * (eager - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("how", [ROWS, SEGMENTS])
def test_other_requests_rows_do_not_reach_a_neighbour(how: str) -> None:
    """Not even as NaN: what pads a short request is its own."""
    memory = memory_of(300, KEY_DIM)
    memory.attention = how
    inputs = step_of(random.Random(0), [(1, 30, False), (1, 25, False)], 300)
    query = torch.randn(2, KV_HEADS * GROUPS, KEY_DIM)
    before = StepContext(memory, inputs).attend(query, 0, 0.5, None)
    own = torch.zeros(300, dtype=torch.bool)
    for segment in inputs.segments:
        own[segment.kv_start : segment.kv_start + segment.kv_length] = True
    memory.keys[:, ~own] = memory.values[:, ~own] = float("nan")
    after = StepContext(memory, inputs).attend(query, 0, 0.5, None)
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_runs_cover_the_step_and_pad_little() -> None:
    rng = random.Random(5)
    for _ in range(50):
        shapes = [(rng.choice([1, 1, 1, 4, 5, 8, 40]), rng.randrange(41, 400), False) for _ in range(12)]
        runs = plan_runs(step_of(rng, shapes, 6000), None, GROUPS, torch.float32)
        seen = iter(shapes)
        for run in runs:
            lengths, rows, _ = zip(*(next(seen) for _ in range(run.count)), strict=True)
            assert run.kv_length == max(rows)
            assert run.count * run.kv_length <= 1.5 * sum(rows)
            assert run.length == max(lengths)
            assert run.count * run.length <= 1.5 * sum(lengths)
            assert (min(lengths) == 1) == (run.length == 1)
            assert (run.rows is None) == (run.count == 1)
            assert (run.queries is None) == (run.places is None) == (min(lengths) == run.length)
        assert next(seen, None) is None
