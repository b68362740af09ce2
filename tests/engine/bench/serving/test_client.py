"""What the client reads out of a stream, and what it makes of a bad one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from resispec.engine.bench.contenders import BenchError
from resispec.engine.bench.serving.client import Exchange, exchange
from resispec.engine.bench.serving.process import free_port

USAGE = {"choices": [], "usage": {"completion_tokens": 7}}


def event(body: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + end


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"text": piece}]}


def delta(**fields: str) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


def ask(
    parts: list[bytes],
    status: int = 200,
    on_read: Callable[[], None] = lambda: None,
    *,
    chunked: bool = True,
) -> Exchange:
    """Of a server that sends ``parts``, a little apart in time."""
    seen: list[tuple[bytes, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        seen.append((head, json.loads(await reader.readexactly(int(length.split(b":")[1])))))
        coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        writer.write(b"HTTP/1.1 %d It\r\n%s\r\n" % (status, coding))
        for part in parts:
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        writer.close()

    async def run() -> Exchange:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base"
            headers = {"Authorization": "Bearer it"}
            return await exchange(url, "/v1/completions", {"prompt": "a"}, headers, on_read=on_read)

    try:
        return asyncio.run(run())
    finally:
        ((head, body),) = seen
        assert head.startswith(b"POST /base/v1/completions HTTP/1.1\r\n")
        assert b"\r\nAuthorization: Bearer it\r\n" in head
        assert body == {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}


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


def test_an_answer_may_end_with_its_connection() -> None:
    assert ask([event(text("a")), event(USAGE)], chunked=False).tokens == 7


def failing(words: bytes) -> str:
    """What is said of a server that says only that."""

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            await exchange(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/", {})

    with pytest.raises(BenchError) as error:
        asyncio.run(run())
    return str(error.value)


def test_a_broken_connection_is_a_bench_error() -> None:
    assert failing(b"") == "ConnectionResetError: closed before an answer"
    assert failing(b"what?\r\n\r\n").startswith("HttpParser")
    with pytest.raises(BenchError, match="ConnectionRefusedError"):
        asyncio.run(exchange(f"http://127.0.0.1:{free_port()}", "/", {}))
