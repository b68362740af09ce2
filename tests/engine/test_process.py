"""The engine seen through its pipe, by a loop of either kind; the other end is played by the test."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest
import uvloop

from resispec.engine.outputs import (
    EngineInfo,
    FinishReason,
    RequestOutput,
    StepResult,
    StepStats,
    Usage,
)
from resispec.engine.process import Abort, Close, EngineProcess, Requests, _serve, framed
from resispec.engine.request import Request, RequestError
from resispec.engine.wire import Wire

HUGE = 1 << 20  # tokens, or characters: more than a pipe holds


def messages(connection: Connection) -> Iterator[Any]:
    requests = Requests(connection.fileno())
    while True:
        yield from requests.read()


class Child:
    """Stands in for the engine's process: a thread at the other ends of the pipes."""

    exitcode = 0

    def __init__(self, connection: Connection, results: Connection, dies: bool = False) -> None:
        self.connection = connection
        self.results = results
        self.dies = dies  # in the middle of its first answer
        self.received: list[Any] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        time.sleep(0.3)  # in a step, while the pipe fills up
        for message in messages(self.connection):
            if isinstance(message, Close):
                break
            self.received.append(message)
            if self.dies:
                whole = Wire().encode(StepResult((), StepStats()))
                os.write(self.results.fileno(), whole[: len(whole) // 2])
                break
            output = RequestOutput(
                message.request_id, "x" * HUGE, (), Usage(HUGE, 1), finish_reason=FinishReason.STOP
            )
            Wire().send(self.results.fileno(), StepResult((output,), StepStats()))
        self.connection.close()
        self.results.close()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()


async def answer(client: EngineProcess, request: Request) -> list[RequestOutput]:
    news: asyncio.Queue[RequestOutput | RequestError] = asyncio.Queue()
    client.generate(request, news.put_nowait)
    outputs: list[RequestOutput] = []
    while not outputs or outputs[-1].finish_reason is None:
        output = await news.get()
        assert isinstance(output, RequestOutput)
        outputs.append(output)
    return outputs


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_messages_larger_than_the_pipe_arrive_whole(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    ours, theirs = multiprocessing.Pipe()
    results, writer = multiprocessing.Pipe(duplex=False)
    child = Child(theirs, writer)
    requests = [Request(str(index), tuple(range(index, HUGE))) for index in range(3)]

    async def run() -> tuple[list[list[RequestOutput]], bool]:
        client = EngineProcess(child, ours, cast(EngineInfo, None))
        await client.connect(results)
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(answer(client, request) for request in requests))
        healthy = client.healthy
        await client.close()
        return answers, healthy

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        answers, healthy = runner.run(run())
    assert child.received == requests
    assert [[len(output.text) for output in outputs] for outputs in answers] == [[HUGE]] * 3
    assert all(outputs[-1].finish_reason is FinishReason.STOP for outputs in answers)
    assert healthy
    assert not child.is_alive()


def test_the_end_of_the_engine_ends_what_is_open() -> None:
    ours, theirs = multiprocessing.Pipe()
    results, writer = multiprocessing.Pipe(duplex=False)
    child = Child(theirs, writer, dies=True)

    async def run() -> list[RequestOutput]:
        client = EngineProcess(child, ours, cast(EngineInfo, None))
        await client.connect(results)
        outputs = await answer(client, Request("a", (1, 2)))
        assert not client.healthy
        await client.close()
        return outputs

    with asyncio.Runner() as runner:
        outputs = runner.run(asyncio.wait_for(run(), 30))
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]


class Stepping:
    """An engine with three steps to do."""

    look_again: float | None = None

    def __init__(self) -> None:
        self.left = 3

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def step(self, late: tuple[tuple[str, float], ...]) -> StepResult:
        self.left -= 1
        return StepResult((), StepStats(phase_seconds=(("verify", 0.5), *late)))


def phases_of_steps(engine: Stepping) -> list[dict[str, float]]:
    """The phases of its three steps."""
    ours, theirs = multiprocessing.Pipe()
    results, writer = multiprocessing.Pipe(duplex=False)
    thread = threading.Thread(target=_serve, args=(engine, theirs, writer.fileno()))
    thread.start()
    wire, steps = Wire(), list[dict[str, float]]()
    while len(steps) < 3 and results.poll(10):
        for result in wire.feed(os.read(results.fileno(), 1 << 16)):
            assert isinstance(result, StepResult)
            steps.append(dict(result.stats.phase_seconds))
    os.write(ours.fileno(), framed(Close()))
    thread.join(10)
    assert not thread.is_alive()
    return steps


def test_sending_is_a_phase_of_the_next_step() -> None:
    first, *others = phases_of_steps(Stepping())
    assert len(others) == 2
    assert first == {"verify": 0.5}
    for phases in others:
        assert phases["verify"] == 0.5
        assert 0 < phases["send"] < 1


class Waiting(Stepping):
    """One that has them only when it is looked at for the third time, without anybody asking."""

    look_again = 0.01
    looks = 0

    @property
    def has_work(self) -> bool:
        self.looks += 1
        return self.looks > 2 and self.left > 0


def test_work_that_nobody_asked_for() -> None:
    assert [phases["verify"] for phases in phases_of_steps(Waiting())] == [0.5] * 3


def test_nothing_comes_of_a_request_that_was_aborted() -> None:
    ours, theirs = multiprocessing.Pipe()
    results, writer = multiprocessing.Pipe(duplex=False)
    requests = [Request("a", (1, 2)), Request("a", (3, 4))]

    async def run() -> tuple[list[Any], list[Any]]:
        client = EngineProcess(None, ours, cast(EngineInfo, None))
        await client.connect(results)
        news: asyncio.Queue[RequestOutput | RequestError] = asyncio.Queue()
        first: list[Any] = []
        abort = client.generate(requests[0], first.append)
        abort()
        client.generate(requests[1], news.put_nowait)
        abort()  # of the first one, whose name the second has now
        output = RequestOutput("a", "x", (), Usage(1, 1), finish_reason=FinishReason.STOP)
        Wire().send(writer.fileno(), StepResult((output,), StepStats()))
        assert await asyncio.wait_for(news.get(), 30) == output
        sent = messages(theirs)
        received = [await asyncio.to_thread(next, sent) for _ in range(3)]
        writer.close()
        return first, received

    first, received = asyncio.run(run())
    assert first == []
    assert received == [requests[0], Abort("a"), requests[1]]
