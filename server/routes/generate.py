"""What both generation endpoints do: run and answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fastapi import Request, Response

from resispec.engine.request import Request as EngineRequest

from ..answers import respond
from ..generation import Generation
from ..schemas.common import GenerationBody
from ..state import AppState
from ..writers import EnvelopeFields, Writer


def new_envelope(prefix: str, body: GenerationBody, request: Request, state: AppState) -> EnvelopeFields:
    """The fields that every body of this answer repeats. Raises ApiError 404 for an unknown model."""
    return EnvelopeFields(
        id=f"{prefix}-{body.request_id or request.state.request_id}",
        created=int(time.time()),
        model=state.resolve_model(body.model),
        system_fingerprint=state.system_fingerprint,
    )


async def generate(
    request: Request,
    body: GenerationBody,
    requests: Sequence[EngineRequest],
    writer: Writer,
    state: AppState,
    scope: AsyncExitStack,
) -> Response:
    """Run ``requests`` in the engine and answer. When ``scope`` ends, nothing of it runs any more."""
    generation = Generation(state.client, requests)
    scope.enter_context(state.admission.track(generation))
    scope.callback(_log, request, body, generation)
    scope.push_async_callback(generation.aclose)
    await generation.start()
    return await respond(request, body, generation, writer, state.settings.sse_keep_alive)


def _log(request: Request, body: GenerationBody, generation: Generation) -> None:
    """Add to the request's log line: counts and times, no content."""
    metrics = list(generation.metrics.values())
    request.state.log.update(
        stream=bool(body.stream),
        sequences=len(generation.usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in generation.usages),
        completion_tokens=sum(usage.completion_tokens for usage in generation.usages),
        finish_reasons=sorted({reason.value for reason in generation.finish_reasons.values()}),
    )
    if metrics:
        request.state.log.update(
            queue_ms=round(min(part.queue_time_ms for part in metrics), 1),
            first_token_ms=round(min(part.time_to_first_token_ms for part in metrics), 1),
        )
