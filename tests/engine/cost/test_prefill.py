"""Chunks of prompts: what they are predicted to add to a step, and how large one fits into a time."""

from __future__ import annotations

import random

import pytest

from resispec.engine.cost.prefill import LEAST_CHUNK, PrefillCosts, StepLoad, num_pairs, prompt_pairs
from resispec.engine.cost.surface import Surface
from resispec.engine.cost.table import CostTable
from resispec.models.base import Segment

TOKEN, PAIR = 0.0005, 2e-7  # seconds


def costs() -> PrefillCosts:
    return PrefillCosts(CostTable(Surface((1, 1024), (1, 1 << 16), [[TOKEN] * 2, [1024 * TOKEN] * 2])))


def observe(prefill: PrefillCosts, length: int, start: int, factor: float = 1.0) -> float:
    seconds = length * TOKEN + PAIR * num_pairs(length, start + length)
    return prefill.observe([Segment(0, length, 0, start + length)], seconds * factor)


def test_pairs_are_counted_of_chunks_only() -> None:
    assert num_pairs(3, 10) == 8 + 9 + 10
    tree = Segment(0, 4, 0, 12, mask=object())  # type: ignore[arg-type]
    assert prompt_pairs([Segment(0, 3, 0, 10), Segment(3, 1, 20, 9), tree]) == 27


def test_the_price_of_attention_is_learned_and_not_charged_to_the_table() -> None:
    prefill, rng = costs(), random.Random(1)
    assert prefill.seconds_per_pair == 0
    for _ in range(60):
        observe(prefill, rng.randrange(16, 200), rng.randrange(6000), factor=rng.uniform(0.9, 1.1))
    assert prefill.seconds_per_pair == pytest.approx(PAIR, rel=0.05)
    assert observe(prefill, 100, 4000) == pytest.approx(100 * TOKEN, rel=0.1)
    added = prefill.chunk_seconds(64, 4000, StepLoad(8, 2000))
    assert added == pytest.approx(64 * TOKEN + PAIR * num_pairs(64, 4064), rel=0.05)


def test_steps_without_chunks_are_the_tables() -> None:
    prefill = costs()
    assert prefill.observe([Segment(0, 1, 0, 5000), Segment(1, 1, 6000, 10)], 0.3) == 0.3
    assert prefill.seconds_per_pair == 0


def test_the_usual_error_is_learned() -> None:
    prefill, rng = costs(), random.Random(1)
    assert prefill.usual_error > 0.1, "nothing is known yet"
    for _ in range(100):
        observe(prefill, rng.randrange(16, 200), rng.randrange(6000))
    assert prefill.usual_error < 0.01
    for _ in range(100):
        observe(prefill, rng.randrange(16, 200), rng.randrange(6000), factor=rng.choice([0.8, 1.2]))
    assert 0.1 < prefill.usual_error < 0.3
    observe(prefill, 64, 2000, factor=100)
    assert prefill.usual_error < 0.4, "a stall is one step"


def test_a_stall_counts_for_little() -> None:
    prefill = costs()
    for _ in range(20):
        observe(prefill, 64, 2000)
    observe(prefill, 64, 2000, factor=50)
    assert PAIR < prefill.seconds_per_pair < 1.3 * PAIR


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.05, 0.3, 100.0])
@pytest.mark.parametrize("start", [0, 500, 7000])
@pytest.mark.parametrize("most", [1, 15, 16, 40, 512])
def test_the_largest_chunk_that_fits(most: int, start: int, seconds: float) -> None:
    prefill, load = costs(), StepLoad(8, 1000)
    for _ in range(20):
        observe(prefill, 64, 2000)
    size = prefill.fitting(most, start, load, seconds)
    assert min(most, LEAST_CHUNK) <= size <= most
    assert size == most or size % LEAST_CHUNK == 0
    if LEAST_CHUNK < size < most:
        assert prefill.chunk_seconds(size, start, load) <= seconds
    if size < most:
        assert prefill.chunk_seconds(size + LEAST_CHUNK, start, load) > seconds
