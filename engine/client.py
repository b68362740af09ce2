"""The contract between the server room and an engine, wherever that engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from .outputs import EngineInfo, RequestOutput, StepStats
from .request import Request, RequestError

Deliver: TypeAlias = Callable[[RequestOutput | RequestError], None]
"""Takes news of one request, on the loop."""


class EngineClient(Protocol):
    """An engine as the server sees it. All methods are called from one asyncio loop.

    Invariants: of a request that is not aborted at least one output is delivered and exactly one with a
    ``finish_reason``, the last; or one RequestError and nothing else. If the engine dies, every open request
    ends with ``FinishReason.ERROR`` and `healthy` turns false for good.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def healthy(self) -> bool: ...

    def generate(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        """Queue the request at once; its outputs go to ``deliver``, or a RequestError, if it is a bad one.

        Returns what aborts it: at once nothing more is delivered, and within one step it is no more
        computed. It may be called at any time, and again. Raises RequestError for an id that is in use.
        """
        ...

    def on_stats(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the stats of every step from now on."""
        ...

    async def close(self) -> None:
        """Abort what is left and stop the engine. Idempotent."""
        ...
