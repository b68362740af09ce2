"""Running a generation for an HTTP request: as one JSON body, or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from resispec.engine.outputs import Usage
from resispec.engine.request import RequestError

from .errors import CLIENT_CLOSED_REQUEST, ApiError, internal_error, invalid_request
from .generation import Collected, Generation
from .portions import Portions
from .report import metrics_body, usage_body
from .schemas.common import GenerationBody
from .schemas.usage import MetricsBody, UsageBody
from .writers.base import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")

STALL_SECONDS = 60.0  # that a chunk may wait for the client to make room


class _EventStream(EventSourceResponse):
    """A stream that gives up on a client which stays connected and does not read.

    By one timer for the whole stream: the base class sets and clears one for every chunk, which takes a
    third of the time that a chunk costs.
    """

    _sending_since: float | None = None  # by the loop's clock
    _limit: asyncio.Timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(None) as self._limit:
                await super().__call__(scope, receive, send)
        except TimeoutError:
            logger.warning("a client did not read its stream for %g s", STALL_SECONDS)
        finally:
            watch.cancel()

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        self._sending_since = asyncio.get_running_loop().time()
        await send(message)
        self._sending_since = None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            since = self._sending_since
            if since is not None and loop.time() - since >= STALL_SECONDS:
                self._limit.reschedule(loop.time())
                return
            await asyncio.sleep(STALL_SECONDS / 4)


async def respond(
    request: Request, body: GenerationBody, generation: Generation, writer: Writer, keep_alive: float
) -> Response:
    """The answer to ``body``; in either form, a client that goes away ends the generation.

    keep_alive: seconds between comments in a silent stream; 0: none.
    """
    if body.stream:
        return event_stream(_events(body, generation, writer), keep_alive)
    return await answer_whole(request, _answer(body, generation, writer))


def event_stream(events: AsyncIterator[bytes], keep_alive: float) -> Response:
    """An answer of server-sent ``events``, with comments in between while there is nothing to send."""
    return _EventStream(events, ping=keep_alive, sep="\n", send_timeout=STALL_SECONDS)


async def answer_whole(request: Request, work: Coroutine[Any, Any, str]) -> Response:
    """An answer of the JSON that ``work`` makes; ``work`` is cancelled if the client hangs up first."""
    answer = await _unless_disconnected(request, work)
    if answer is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(answer, media_type="application/json")


async def _answer(body: GenerationBody, generation: Generation, writer: Writer) -> str:
    choices = [Collected() for _ in generation.usages]
    async for index, output in generation.outputs():
        choices[index].add(output)
    return writer.answer(choices, *_figures(body, generation, generation.usages)).model_dump_json()


async def _events(body: GenerationBody, generation: Generation, writer: Writer) -> AsyncIterator[bytes]:
    portions = [Portions(body.stream_interval) for _ in generation.usages]
    whole = body.stream_interval is None and body.answer_logprobs is None
    delivered = [*generation.usages]
    try:
        async for index, output in generation.outputs():
            for portion in (output,) if whole else portions[index].split(output):
                delivered[index] = portion.usage
                usage = _figures(body, generation, delivered)[0] if body.continuous_usage else None
                for chunk in writer.chunks(index, portion, usage):
                    yield _event(chunk)
        if body.include_usage:
            yield _event(writer.usage_chunk(*_figures(body, generation, delivered)).model_dump_json())
    except RequestError as exc:
        yield _event(json.dumps(invalid_request(exc).body()))
    except ApiError as exc:
        yield _event(json.dumps(exc.body()))
    except Exception:
        # The status has been sent, so the client can learn of it only here.
        logger.exception("a stream failed")
        yield _event(json.dumps(internal_error().body()))
    yield _event("[DONE]")


def _figures(
    body: GenerationBody, generation: Generation, usages: Sequence[Usage]
) -> tuple[UsageBody, MetricsBody | None]:
    usage = usage_body(usages, body.sequences_per_prompt, generation.speculation)
    return usage, metrics_body(list(generation.metrics.values()), usage.completion_tokens)


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``, or None if the client hung up first; ``work`` is then cancelled."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for future in (task, watch):
            future.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    # The body has been read, so the next message that is no more of it says that the client has gone.
    while (await request.receive())["type"] != "http.disconnect":
        pass
