"""The bounded queue: how many sequences may be in the server, and which generations they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from .errors import ApiError, invalid


class Abortable(Protocol):
    """Work in progress that can be ended early, its clients still getting a proper end."""

    def abort(self, reason: str) -> None: ...


class Admission:
    """Counts the sequences in flight and refuses those beyond ``capacity`` (running plus waiting).

    on_reject: told "queue_full" or "draining" for every refusal.
    """

    def __init__(self, capacity: int, on_reject: Callable[[str], None]) -> None:
        self.capacity = capacity
        self.in_flight = 0
        self._on_reject = on_reject
        self._drain_seconds: float | None = None
        self._work: set[Abortable] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self, prompts: int, per_prompt: int) -> Iterator[None]:
        """Hold a place for every sequence. Raises ApiError: 503 now, 400 for more than ever fit."""
        sequences = prompts * per_prompt
        if sequences > self.capacity:
            field = "n" if per_prompt > 1 else "prompt"
            raise invalid(field, f"{sequences} sequences in one request; this server takes {self.capacity}")
        if self._drain_seconds is not None:
            self._on_reject("draining")
            raise _busy("The server is shutting down", max(1, round(self._drain_seconds)))
        if self.in_flight + sequences > self.capacity:
            self._on_reject("queue_full")
            raise _busy(f"The queue is full: {self.in_flight} of {self.capacity} sequences", 1)
        self.in_flight += sequences
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= sequences
            if self.in_flight == 0:
                self._idle.set()

    @contextmanager
    def track(self, work: Abortable) -> Iterator[None]:
        """Know ``work`` while it runs, to abort it when a drain takes too long."""
        self._work.add(work)
        try:
            yield
        finally:
            self._work.discard(work)

    def refuse_new(self, drain_seconds: float) -> None:
        """Answer 503 from now on."""
        self._drain_seconds = drain_seconds

    def abort_all(self) -> None:
        """End what is running now, for the reason that the server is going down."""
        for work in tuple(self._work):
            work.abort("server_shutdown")

    async def wait_idle(self, seconds: float) -> bool:
        """Whether nothing is in flight any more, waiting for at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def _busy(message: str, seconds: int) -> ApiError:
    return ApiError(503, message, code="server_busy", headers={"Retry-After": str(seconds)})
