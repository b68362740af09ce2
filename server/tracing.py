"""OpenTelemetry traces: a span for every request, with its queue, prefill and steps below it.

Spans are made when a request ends, from the times the engine measured, so a request pays nothing on the
way. Names and attributes are those of OpenTelemetry's conventions for generative AI, where they have one.
Prompts and answers are in none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resispec.engine.config import ConfigError
from resispec.engine.outputs import FinishReason, RequestMetrics, RequestOutput, Usage

from .schemas.common import GenerationBody

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span

    from .generation import Generation

_NANOSECONDS = 1_000_000_000


@dataclass(slots=True)
class StepLog:
    """When each sequence of a request got news, and of how many tokens."""

    steps: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  # seconds, monotonic

    def add(self, index: int, output: RequestOutput) -> None:
        if output.token_ids:
            self.steps.setdefault(index, []).append((time.monotonic(), len(output.token_ids)))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What a request's spans say."""

    operation: str  # "chat" or "text_completion"
    request_id: str
    model: str
    arrived: float  # seconds, monotonic
    headers: Mapping[str, str]  # the caller's, for the trace that this is part of
    body: GenerationBody
    generation: Generation
    log: StepLog


class Tracing:
    """Sends spans. Not made at all unless traces are wanted."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider

        # Attributes in OTEL_RESOURCE_ATTRIBUTES and the name in OTEL_SERVICE_NAME win over these.
        about = Resource({"service.name": "resispec", "service.version": version})
        about = about.merge(OTELResourceDetector().detect())
        self._provider: TracerProvider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("resispec", version)

    def record(self, request: RequestRecord) -> None:
        """Make the spans of a request that has just ended."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, set_span_in_context

        clock = _Clock()
        span = self._tracer.start_span(
            f"{request.operation} {request.model}",
            context=extract(request.headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(request),
            start_time=clock.at(request.arrived),
        )
        _set_status(span, request.generation)
        below = set_span_in_context(span)
        for index, metrics in sorted(request.generation.metrics.items()):
            for name, start, end in _phases(metrics, request.arrived):
                part = self._tracer.start_span(name, context=below, start_time=clock.at(start))
                part.set_attribute("resispec.choice", index)
                if name == "decode":
                    part.set_attributes(_speculation(metrics))
                    for when, tokens in request.log.steps.get(index, ()):
                        part.add_event("step", {"resispec.tokens": tokens}, clock.at(when))
                part.end(clock.at(end))
        span.end(clock.at(time.monotonic()))

    def close(self) -> None:
        """Send what is left. Takes seconds at most, so not on the event loop."""
        self._provider.shutdown()


def start_tracing(endpoint: str, version: str) -> Tracing:
    """Traces to a collector that speaks OTLP over HTTP. Raises ConfigError if the package is missing.

    endpoint: like ``http://localhost:4318/v1/traces``.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "otlp_endpoint needs OpenTelemetry: pip install 'resispec[otel]'", "otlp_endpoint"
        ) from None
    return Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), version)


class _Clock:
    """From monotonic seconds to nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def at(self, monotonic: float) -> int:
        return int((monotonic + self._offset) * _NANOSECONDS)


def _phases(metrics: RequestMetrics, arrived: float) -> Sequence[tuple[str, float, float]]:
    """(name, start, end), in monotonic seconds."""
    scheduled = arrived + metrics.queue_time_ms / 1000
    first = scheduled + metrics.prefill_time_ms / 1000
    last = first + metrics.generation_time_ms / 1000
    return ("queue", arrived, scheduled), ("prefill", scheduled, first), ("decode", first, last)


def _attributes(request: RequestRecord) -> dict[str, Any]:
    body, generation = request.body, request.generation
    usage: list[Usage] = generation.usages
    found = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": "resispec",
        "gen_ai.request.model": request.model,
        "gen_ai.response.id": request.request_id,
        "gen_ai.request.temperature": body.temperature,
        "gen_ai.request.top_p": body.top_p,
        "gen_ai.request.seed": body.seed,
        "gen_ai.request.max_tokens": body.token_limit()[1],
        "gen_ai.request.choice.count": None if body.n == 1 else body.n,
        "gen_ai.usage.input_tokens": sum(part.prompt_tokens for part in usage),
        "gen_ai.usage.output_tokens": sum(part.completion_tokens for part in usage),
        "gen_ai.usage.cache_read.input_tokens": sum(part.cached_tokens for part in usage),
        "gen_ai.response.finish_reasons": [reason.value for reason in _reasons(generation)],
        "resispec.stream": bool(body.stream),
        "resispec.num_preemptions": sum(part.num_preemptions for part in generation.metrics.values()),
    }
    return {name: value for name, value in found.items() if value is not None}


def _speculation(metrics: RequestMetrics) -> dict[str, Any]:
    figures = metrics.speculation
    if figures is None:
        return {}
    return {
        "resispec.verifier": figures.verifier,
        "resispec.exact": figures.exact,
        "resispec.mean_acceptance_length": figures.mean_acceptance_length,
        "resispec.num_spec_steps": figures.num_spec_steps,
        "resispec.num_draft_tokens": figures.num_draft_tokens,
        "resispec.num_accepted_draft_tokens": figures.num_accepted_draft_tokens,
    }


def _reasons(generation: Generation) -> list[FinishReason]:
    """Of every sequence; one whose end nobody waited for was aborted."""
    count = len(generation.usages)
    return [generation.finish_reasons.get(index, FinishReason.ABORT) for index in range(count)]


def _set_status(span: Span, generation: Generation) -> None:
    from opentelemetry.trace import Status, StatusCode

    if generation.failure is not None:
        span.set_attribute("error.type", "engine_error")
        span.set_status(Status(StatusCode.ERROR, generation.failure))
