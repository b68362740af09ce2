"""One response under way: read from the engine, told to its client, and seen by others meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from resispec.engine.outputs import RequestOutput
from resispec.engine.request import RequestError

from ..errors import ApiError, internal_error
from ..generation import Collected, Generation
from ..portions import Portions
from ..report import metrics_body, usage_body
from ..schemas.response import Event, Response, ResponseError
from .store import Turn
from .writer import CANCELLED, Ending, ResponseWriter, ending_of

logger = logging.getLogger(__name__)


class ResponseRun:
    """Runs ``generation``, of one sequence, to its end.

    turns: the conversation before the answer. on_end: called once, when nothing changes any more. portions:
    what cuts the outputs into events; None: one for each.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        generation: Generation,
        turns: tuple[Turn, ...],
        on_end: Callable[[], None],
        portions: Portions | None,
    ) -> None:
        self._writer = writer
        self._generation = generation
        self._turns = turns
        self._on_end = on_end
        self._portions = portions
        self._collected = Collected()
        self._cancelled = False
        self._last_events: list[Event] = []
        self._ending: Ending | None = None

    @property
    def conversation(self) -> tuple[Turn, ...]:
        return (*self._turns, self._writer.turn())

    def snapshot(self) -> Response:
        ending = self._ending
        if ending is None and self._cancelled:
            ending = Ending("cancelled", int(time.time()))
        return self._writer.response(ending)

    def cancel(self) -> bool:
        if self._cancelled or self._ending is not None:
            return False
        self._cancelled = True
        self._generation.abort(CANCELLED)
        return True

    def close(self) -> None:
        """Nobody waits for it any more: what is not finished stays cancelled."""
        self._end(Ending("cancelled", int(time.time())))

    async def whole(self) -> str:
        """The finished response as JSON. Raises RequestError, or ApiError 500 for a failed sequence."""
        try:
            async for output in self._outputs():
                self._written(output)
        except (RequestError, ApiError) as exc:
            self._fail(exc)
            raise
        return self.snapshot().model_dump_json()

    async def events(self) -> AsyncIterator[bytes]:
        """The response as server-sent events; a failure is the last one."""
        for event in self._writer.begin():
            yield _encode(event)
        try:
            async for output in self._outputs():
                for event in self._written(output):
                    yield _encode(event)
        except (RequestError, ApiError) as exc:
            self._fail(exc)
        except Exception:
            # The status has been sent, so the client can learn of it only here.
            logger.exception("a stream failed")
            self._fail(internal_error())
        for event in self._last_events:
            yield _encode(event)

    async def _outputs(self) -> AsyncIterator[RequestOutput]:
        """The outputs as they come; afterwards it has ended."""
        generation = self._generation
        async for _, output in generation.outputs():
            self._collected.add(output)
            yield output
        usage = usage_body(generation.usages, 1, generation.speculation)
        metrics = metrics_body(list(generation.metrics.values()), usage.completion_tokens)
        ending = ending_of(self._collected, usage, metrics)
        # Who cancelled it was told so, even if its last token was on the way.
        self._end(replace(ending, status="cancelled", incomplete=None) if self._cancelled else ending)

    def _written(self, output: RequestOutput) -> list[Event]:
        """Write an output; the events that tell of it."""
        portions = (output,) if self._portions is None else self._portions.split(output)
        return [event for portion in portions for event in self._writer.feed(portion)]

    def _fail(self, exc: RequestError | ApiError) -> None:
        if isinstance(exc, RequestError):
            error = ResponseError(code="invalid_prompt", message=exc.message)
        else:
            error = ResponseError(code="server_error", message=str(exc.detail))
        self._end(Ending("failed", int(time.time()), error=error))

    def _end(self, ending: Ending) -> None:
        if self._ending is None:
            self._ending = ending
            self._last_events = self._writer.end(ending)
            self._on_end()


def _encode(event: Event) -> bytes:
    return f"event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()
