"""Closed and open loops."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from resispec.engine.bench.contenders import BenchError
from resispec.engine.bench.serving.load import closed_loop, open_loop


def test_a_closed_loop_keeps_so_many_in_flight_and_gives_answers_in_order() -> None:
    live, most = 0, 0

    async def send(number: int) -> int:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001 * (10 - number))
        live -= 1
        return number

    assert asyncio.run(closed_loop(send, 10, 3)) == list(range(10))
    assert most == 3
    assert asyncio.run(closed_loop(send, 2, 8)) == [0, 1]


def test_one_failure_ends_all() -> None:
    ended: list[int] = []

    async def send(number: int) -> int:
        if number == 1:
            raise BenchError("no")
        await asyncio.sleep(30)
        ended.append(number)
        return number

    began = time.monotonic()
    with pytest.raises(BenchError, match="no"):
        asyncio.run(closed_loop(send, 5, 2))
    assert time.monotonic() - began < 10
    assert not ended


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """When each request was due, from the first on. The moments do not depend on the answers."""

    async def send(_number: int, due: float) -> float:
        assert time.perf_counter() >= due
        return due

    moments = asyncio.run(open_loop(send, count, rate, seed))
    return [moment - moments[0] for moment in moments]


def test_an_open_loop_is_a_poisson_process() -> None:
    moments = arrivals(2000, 10_000.0, seed=1)
    gaps = [b - a for a, b in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    # Exponential: deviation as large as the mean. Both bounds are 5 standard errors wide.
    assert mean == pytest.approx(1e-4, rel=0.12)
    assert variance**0.5 == pytest.approx(1e-4, rel=0.2)
    assert arrivals(5, 1000.0, seed=1) == pytest.approx([10 * moment for moment in moments[:5]], abs=1e-6)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    live, most = 0, 0

    async def send(number: int, _due: float) -> int:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.2)
        live -= 1
        return number

    assert asyncio.run(open_loop(send, 8, 1000.0, seed=0)) == list(range(8))
    assert most == 8
