"""What both generation endpoints do: run and answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from fastapi import Request, Response

from resispec.engine.outputs import RequestOutput
from resispec.engine.request import Request as EngineRequest

from ..answers import respond
from ..deadline import ABORT_REASON
from ..errors import invalid
from ..generation import Generation
from ..schemas.common import GenerationBody
from ..state import AppState
from ..tracing import RequestRecord, StepLog
from ..writers.base import EnvelopeFields, Writer


def new_envelope(prefix: str, body: GenerationBody, request: Request, state: AppState) -> EnvelopeFields:
    """The fields that every body of this answer repeats. Raises ApiError 404 for an unknown model."""
    return EnvelopeFields(
        id=f"{prefix}-{body.request_id or request.state.request_id}",
        created=int(time.time()),
        model=state.resolve_model(body.model),
        system_fingerprint=state.system_fingerprint,
    )


def admit(request: Request, state: AppState, scope: AsyncExitStack, prompts: int, per_prompt: int) -> None:
    """Take a place for every sequence until ``scope`` ends. Raises ApiError 503, 429, or 400 for too many."""
    scope.enter_context(state.admission.admit(prompts, per_prompt))
    scope.enter_context(state.limits.admit(request.state.key))


async def generate(
    request: Request,
    body: GenerationBody,
    requests: Sequence[EngineRequest],
    writer: Writer,
    state: AppState,
    scope: AsyncExitStack,
) -> Response:
    """Run ``requests`` in the engine and answer. When ``scope`` ends, nothing of it runs any more."""
    generation = start(request, body, requests, state, scope)
    return await respond(request, body, generation, writer, state.settings.sse_keep_alive)


def start(
    request: Request,
    body: GenerationBody,
    requests: Sequence[EngineRequest],
    state: AppState,
    scope: AsyncExitStack,
) -> Generation:
    """Queue ``requests`` in the engine: counted, logged, ended by their deadline and with ``scope``."""
    steps = StepLog()
    tracing = state.tracing
    watchers: list[Callable[[int, RequestOutput], None]] = [] if tracing is None else [steps.add]
    if any(item.speculation.trace for item in requests):
        watchers.append(_keep_steps(request, body, state))
    owned = [replace(item, owner=request.state.key) for item in requests]
    generation = Generation(state.client, owned, watchers)
    scope.enter_context(state.admission.track(generation))
    _watch_tokens(request.state.key, generation, state, scope)
    if request.state.deadline is not None:
        left = max(0.0, request.state.deadline - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left, generation.abort, ABORT_REASON)
        scope.callback(timer.cancel)
    scope.callback(_log, request, body, generation)
    if tracing is not None:
        scope.callback(tracing.record, _record(request, body, generation, steps, state))
    scope.callback(generation.close)
    generation.start()
    return generation


def _keep_steps(
    request: Request, body: GenerationBody, state: AppState
) -> Callable[[int, RequestOutput], None]:
    """Where the outputs' step traces go. Raises ApiError 400 where none are kept."""
    if not state.step_traces.enabled:
        raise invalid("speculation.trace", "this server keeps no steps; --trace-store-bytes makes room")
    return state.step_traces.open(request.state.key, body.request_id or request.state.request_id)


def _watch_tokens(key: str, generation: Generation, state: AppState, scope: AsyncExitStack) -> None:
    """Count prompts for ``key`` now, and what was generated when ``scope`` ends."""
    state.limits.spend(key, sum(usage.prompt_tokens for usage in generation.usages))
    scope.callback(
        lambda: state.limits.spend(key, sum(usage.completion_tokens for usage in generation.usages))
    )


def _record(
    request: Request, body: GenerationBody, generation: Generation, steps: StepLog, state: AppState
) -> RequestRecord:
    operation = "text_completion" if request.url.path == "/v1/completions" else "chat"
    model = state.resolve_model(body.model)
    identity = request.state.request_id
    arrived: float = request.state.arrived
    return RequestRecord(operation, identity, model, arrived, request.headers, body, generation, steps)


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
