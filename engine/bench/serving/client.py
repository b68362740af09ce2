"""One streamed completion, with the times at which its pieces arrived."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx2

from ..contenders import BenchError

_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)  # seconds without a byte


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


def http_client(url: str, headers: Mapping[str, str], *, keep_alive: bool = True) -> httpx2.AsyncClient:
    """keep_alive: False for a server that mishandles a second request on a connection."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None if keep_alive else 0)
    # Proxies of the environment are meant for other addresses than a server under test.
    return httpx2.AsyncClient(
        base_url=url, headers=dict(headers), limits=limits, timeout=_TIMEOUT, trust_env=False
    )


async def exchange(
    client: httpx2.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    *,
    due: float | None = None,
    on_read: Callable[[], None] = lambda: None,
) -> Exchange:
    """Send ``body`` with streaming and usage asked for; ``on_read`` is called at each read.

    What was read is looked into only after the end: on a machine that also runs the server, that time
    is the server's. Raises BenchError for an error, an answer without text and one without usage.
    """
    sent = time.perf_counter() if due is None else due
    lines: list[tuple[float, bytes]] = []
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client.stream("POST", path, json=streaming) as response:
            if response.status_code != 200:
                raise BenchError(f"HTTP {response.status_code}: {_reason(await response.aread())}")
            rest = b""
            async for data in response.aiter_bytes():
                now = time.perf_counter()
                *whole, rest = (rest + data).split(b"\n")
                lines += [(now, line) for line in whole]
                on_read()
    except httpx2.HTTPError as error:
        raise BenchError(f"{type(error).__name__}: {error}") from error
    return _digest(sent, lines)


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
