"""The contract between the server room and an engine, wherever that engine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from .outputs import EngineInfo, RequestOutput, StepStats
from .request import Request


class EngineClient(Protocol):
    """An engine as the server sees it. All methods are called from one asyncio loop.

    Invariants: `generate` yields at least one output and exactly one with a ``finish_reason``, the
    last. If its consumer stops early (the generator is closed or cancelled), the request is aborted
    within one step. If the engine dies, every open `generate` ends with ``FinishReason.ERROR`` and
    `healthy` turns false for good.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def healthy(self) -> bool: ...

    def generate(self, request: Request) -> AsyncIterator[RequestOutput]:
        """Queue the request at once and yield its outputs. Raises RequestError for a bad one."""
        ...

    def on_stats(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the stats of every step from now on."""
        ...

    async def close(self) -> None:
        """Abort what is left and stop the engine. Idempotent."""
        ...
