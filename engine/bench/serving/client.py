"""One streamed completion, with the times at which its pieces arrived."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import httptools

from ..contenders import BenchError

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One answer as its reader saw it. Times in seconds, `time.perf_counter`."""

    sent: float  # or when it was due, where requests arrive at a rate
    arrivals: tuple[float, ...]  # reads that brought text, in order
    tokens: int  # of the answer, as the server counts them in its usage

    @property
    def first_token_seconds(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> tuple[float, ...]:
        """Between one read with text and the next."""
        return tuple(b - a for a, b in pairwise(self.arrivals))


class _Answer(asyncio.Protocol):
    """Keeps what is read with its times. A read costs a sixth of what it costs in a whole HTTP client, and
    on a machine that also runs the server that time is the server's.
    """

    def __init__(self, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self.status: int | None = None
        self.body: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._now, before = time.perf_counter(), len(self.body)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)
        if len(self.body) > before:
            self._on_read()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body.append((self._now, data))

    def on_message_complete(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        # An answer of unknown length ends with its connection; whether it is whole, its usage tells.
        self._end(exc or (None if self.status else ConnectionResetError("closed before an answer")))

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def exchange(
    url: str,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    due: float | None = None,
    on_read: Callable[[], None] = lambda: None,
) -> Exchange:
    """Send ``body`` with streaming and usage asked for; ``on_read`` is called at each read.

    url: of the server, ``path`` comes behind it. Every request has a connection of its own. What was read is
    looked into only after the end. Raises BenchError for an error, an answer without text and one without
    usage.
    """
    sent = time.perf_counter() if due is None else due
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            transport, answer = await loop.create_connection(
                lambda: _Answer(on_read),
                parts.hostname or "",
                parts.port or (443 if secure else 80),
                ssl=secure or None,
            )
        try:
            transport.write(_request(parts.netloc, parts.path + path, streaming, headers))
            async with asyncio.timeout(_ANSWER_SECONDS):
                await answer.ended
        finally:
            transport.abort()
    except (OSError, httptools.HttpParserError) as error:  # a timeout is an OSError, too
        raise BenchError(f"{type(error).__name__}: {error}") from error
    if answer.status != 200:
        raise BenchError(f"HTTP {answer.status}: {_reason(b''.join(data for _, data in answer.body))}")
    return _digest(sent, _lines(answer.body))


def _request(host: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    content = json.dumps(body).encode()
    fields = {
        "Host": host,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content


def _lines(reads: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Each line with the time of the read that ended it."""
    lines: list[tuple[float, bytes]] = []
    rest = b""
    for when, data in reads:
        *whole, rest = (rest + data).split(b"\n")
        lines += [(when, line) for line in whole]
    return lines


def _digest(sent: float, lines: Sequence[tuple[float, bytes]]) -> Exchange:
    arrivals: dict[float, None] = {}
    tokens: int | None = None
    for when, line in lines:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        event = json.loads(line[5:])
        if event.get("error"):
            raise BenchError(f"an error in the stream: {_message(event)}")
        if any(_text(choice) for choice in event.get("choices") or ()):
            arrivals[when] = None
        if event.get("usage"):
            tokens = int(event["usage"]["completion_tokens"])
    if tokens is None:
        raise BenchError("the server sends no usage, so its tokens cannot be counted")
    if not arrivals:
        raise BenchError("an answer without text")
    return Exchange(sent, tuple(arrivals), tokens)


def _text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return str(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or "")


def _reason(body: bytes) -> str:
    """What an error's body says, cut to a line."""
    try:
        return _message(json.loads(body))
    except ValueError:
        return body[:200].decode(errors="replace")


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and "message" in error:
        return str(error["message"])
    return str(error or body)[:200]
