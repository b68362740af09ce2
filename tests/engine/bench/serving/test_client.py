"""What the client reads out of a stream, and what it makes of a bad one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from resispec.engine.bench.contenders import BenchError
from resispec.engine.bench.serving.client import Exchange, exchange

USAGE = {"choices": [], "usage": {"completion_tokens": 7}}


class Parts(httpx2.AsyncByteStream):
    """Pieces of a body, a little apart in time."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            await asyncio.sleep(0.02)
            yield part


def event(body: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + end


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"text": piece}]}


def delta(**fields: str) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


def ask(parts: list[bytes], status: int = 200, on_read: Callable[[], None] = lambda: None) -> Exchange:
    seen: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        return httpx2.Response(status, stream=Parts(parts))

    async def run() -> Exchange:
        transport = httpx2.MockTransport(answer)
        async with httpx2.AsyncClient(base_url="http://it", transport=transport) as client:
            return await exchange(client, "/v1/completions", {"prompt": "a"}, on_read=on_read)

    result = asyncio.run(run())
    assert seen == [{"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}]
    return result


def test_reads_with_text_are_timed_and_tokens_come_from_usage() -> None:
    parts = [
        event(delta(role="assistant")),
        event(delta(content="a")),
        event(delta(content="")),
        event(text("b")),
    ]
    reads: list[int] = []
    seen = ask([*parts, event(USAGE) + event(b"[DONE]")], on_read=lambda: reads.append(1))
    assert seen.tokens == 7
    assert len(seen.arrivals) == 2
    assert seen.first_token_seconds > 0.03  # the second part brought the first text
    (gap,) = seen.gaps
    assert gap > 0.03
    assert len(reads) == 5


def test_events_may_be_cut_anywhere_and_come_together() -> None:
    whole = event(text("a"), b"\r\n\r\n") + b": a comment\n\n" + event(text("b")) + event(USAGE)
    for cut in (1, 9, len(whole) - 3):
        assert ask([whole[:cut], whole[cut:]]).tokens == 7
    assert len(ask([whole]).arrivals) == 1


def test_reasoning_is_text() -> None:
    assert len(ask([event(delta(reasoning_content="hm")), event(USAGE)]).arrivals) == 1


@pytest.mark.parametrize(
    ("parts", "status", "message"),
    [
        ([b'{"error": {"message": "too many"}}'], 503, "HTTP 503: too many"),
        ([b"<html>"], 502, "HTTP 502: <html>"),
        ([b'"what?"'], 400, "HTTP 400: what?"),
        ([event({"error": {"message": "lost"}})], 200, "error in the stream: lost"),
        ([event(text("a")), event(b"[DONE]")], 200, "no usage"),
        ([event(USAGE)], 200, "without text"),
    ],
)
def test_bad_answers_say_why(parts: list[bytes], status: int, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        ask(parts, status)


def test_a_broken_connection_is_a_bench_error() -> None:
    def fail(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    async def run() -> None:
        async with httpx2.AsyncClient(base_url="http://it", transport=httpx2.MockTransport(fail)) as client:
            await exchange(client, "/", {})

    with pytest.raises(BenchError, match="ConnectError: refused"):
        asyncio.run(run())
