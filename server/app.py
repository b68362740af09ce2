"""The FastAPI application, made from an engine client, a tokenizer and the settings."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from resispec.engine.client import EngineClient
from resispec.engine.config import ConfigError
from resispec.engine.outputs import StepStats
from resispec.models.compiled.state import CompileState

from . import errors, openapi
from .admission import Admission
from .keys import KeyFileError, KeyRing
from .lifecycle import Lifecycle
from .limits import KeyLimits
from .load import Load
from .metrics import Metrics
from .middleware import ApiKeys, BodyLimit, RequestLog
from .prompts import Prompts, Tokenizer
from .responses.store import ResponseStore
from .routes import audit, chat, completions, health, models, page, responses, speculation, tokenize
from .settings import ServerSettings
from .state import AppState
from .step_traces import StepTraceStore
from .structured import Grammars
from .tracing import start_tracing

logger = logging.getLogger(__name__)

RESOURCES = (completions, chat, responses, tokenize, models, speculation, audit, health, page)
ROUTERS = tuple(resource.router for resource in RESOURCES)


def create_app(client: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> FastAPI:
    """The HTTP interface of ``client``. Does not close ``client``: who started it does.

    Raises ConfigError for a key file that cannot be read, and for traces without their package.
    """
    state = _create_state(client, tokenizer, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.prompts.close()
        state.grammars.close()
        if state.tracing is not None:
            await asyncio.to_thread(state.tracing.close)

    app = FastAPI(
        title="ResiSpec",
        version=state.version,
        description="LLM inference with exact tree speculation, in OpenAI's dialect.",
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.resispec = state
    client.on_stats(state.metrics.observe_step)
    client.on_stats(state.load.observe_step)
    client.on_stats(_log_compilation)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/page", page.files(), name="page")
    errors.install(app, [route for router in ROUTERS for route in router.routes])
    openapi.install(app, keys=state.keys.required, ignore_unknown=settings.ignore_unknown_fields)
    # The last one added is the outermost: every answer has an id and a log line, refused ones too.
    app.add_middleware(BodyLimit, max_bytes=int(settings.max_body_bytes))
    if state.keys.required:
        app.add_middleware(ApiKeys, ring=state.keys)
    if settings.cors_origin:
        # Outside the keys: browsers send none when they ask what is allowed.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.add_middleware(RequestLog, on_failure=state.metrics.failed)
    return app


def _log_compilation(stats: StepStats) -> None:
    if (status := stats.compilation) is not None:
        logger.log(logging.WARNING if status.state is CompileState.FAILED else logging.INFO, status.note)


def _key_ring(settings: ServerSettings) -> KeyRing:
    try:
        return KeyRing([key.get_secret_value() for key in settings.api_key], settings.api_key_file)
    except KeyFileError as exc:
        raise ConfigError(f"api_key_file: {exc}", "api_key_file") from exc


def _create_state(client: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> AppState:
    info = client.info
    release = version("resispec")
    metrics = Metrics(info, settings.model_names[0], release)
    admission = Admission(info.max_num_seqs + settings.max_queue, metrics.rejected)
    return AppState(
        client=client,
        prompts=Prompts(tokenizer, info.vocab_size),
        grammars=Grammars(tokenizer, info),
        settings=settings,
        admission=admission,
        keys=_key_ring(settings),
        limits=KeyLimits(
            settings.key_requests_per_minute,
            settings.key_tokens_per_minute,
            settings.key_concurrent_requests,
        ),
        load=Load(admission),
        responses=ResponseStore(int(settings.response_store_bytes)),
        step_traces=StepTraceStore(int(settings.trace_store_bytes)),
        audits=asyncio.Lock(),
        lifecycle=Lifecycle(client, admission, settings.drain_timeout),
        metrics=metrics,
        tracing=start_tracing(settings.otlp_endpoint, release) if settings.otlp_endpoint else None,
        version=release,
        started=int(time.time()),
    )
