"""When requests are sent: a fixed number at any time, or at random moments at a given rate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def closed_loop(send: Callable[[int], Awaitable[T]], count: int, concurrency: int) -> list[T]:
    """Requests 0 .. count - 1, ``concurrency`` of them in flight until none is left; in their order.

    The first failure ends all others, and is raised.
    """
    left = iter(range(count))
    done: dict[int, T] = {}

    async def reader() -> None:
        for number in left:
            done[number] = await send(number)

    await _together(reader() for _ in range(concurrency))
    return [done[number] for number in range(count)]


async def open_loop(
    send: Callable[[int, float], Awaitable[T]], count: int, rate: float, seed: int
) -> list[T]:
    """Requests as of many users who do not wait for each other: a Poisson process of ``rate`` a second.

    ``send`` gets a request's number and when it was due (`time.perf_counter`): a client that lags behind
    must not make a slow server look quick.
    """
    draws = random.Random(seed)  # noqa: S311  arrivals, no secrets
    done: dict[int, T] = {}

    async def user(number: int, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        done[number] = await send(number, due)

    moments = [time.perf_counter()]
    for _ in range(count - 1):
        moments.append(moments[-1] + draws.expovariate(rate))
    await _together(user(number, due) for number, due in enumerate(moments))
    return [done[number] for number in range(count)]


async def _together(jobs: object) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:  # type: ignore[attr-defined]
                group.create_task(job)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
