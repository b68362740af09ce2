"""Ready, draining, stopped: what SIGTERM and the engine's death do."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from enum import StrEnum
from types import FrameType

import uvicorn

from resispec.engine.client import EngineClient

from .admission import Admission

logger = logging.getLogger(__name__)

ABORT_GRACE = 5.0  # seconds for aborted answers to reach their clients
FAILED_GRACE = 2.0  # seconds in which /health says what happened before the process ends


class Phase(StrEnum):
    READY = "ready"
    DRAINING = "draining"  # running requests finish, new ones get 503
    FAILED = "failed"  # the engine is dead


class Lifecycle:
    """The server's phase, and the way out of it."""

    def __init__(self, client: EngineClient, admission: Admission, drain_timeout: float) -> None:
        self._client = client
        self._admission = admission
        self._drain_timeout = drain_timeout
        self._draining = False

    @property
    def phase(self) -> Phase:
        if not self._client.healthy:
            return Phase.FAILED
        return Phase.DRAINING if self._draining else Phase.READY

    def begin_drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True
        self._admission.refuse_new(self._drain_timeout)

    async def finish_work(self) -> None:
        """Wait for the running requests, abort what is left after the drain timeout."""
        if not await self._admission.wait_idle(self._drain_timeout):
            logger.warning("aborting %d sequences: the drain timeout is over", self._admission.in_flight)
            self._admission.abort_all()
            await self._admission.wait_idle(ABORT_GRACE)


class Server(uvicorn.Server):
    """uvicorn, but the first signal drains with the socket still open; a second one stops at once.

    announce: called once, when requests are taken.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        client: EngineClient,
        lifecycle: Lifecycle,
        announce: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._client = client
        self._lifecycle = lifecycle
        self._stopping: asyncio.Task[None] | None = None
        self._signalled = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Not uvicorn's way, which raises the signal again at the end and so kills what is being closed.
        if self._signalled:
            self.should_exit = self.force_exit = True
        self._signalled = True

    async def on_tick(self, counter: int) -> bool:
        """Start the way out when there is a reason; ten times a second."""
        if self._stopping is None:
            if self._signalled:
                self._lifecycle.begin_drain()
                self._stopping = asyncio.create_task(self._drain())
            elif not self._client.healthy:
                logger.error("the engine has died")
                self._stopping = asyncio.create_task(self._fail())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        await self._lifecycle.finish_work()
        self.should_exit = True

    async def _fail(self) -> None:
        # Open requests end with an error of their own; see EngineClient.
        await asyncio.sleep(FAILED_GRACE)
        self.should_exit = True
