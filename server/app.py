"""The FastAPI application, made from an engine client, a tokenizer and the settings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from resispec.engine.client import EngineClient

from . import errors
from .admission import Admission
from .lifecycle import Lifecycle
from .metrics import Metrics
from .middleware import ApiKeys, BodyLimit, RequestLog
from .prompts import Prompts, Tokenizer
from .routes import chat, completions, health, models
from .settings import ServerSettings
from .state import AppState


def create_app(client: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> FastAPI:
    """The HTTP interface of ``client``. Does not close ``client``: who started it does."""
    state = _create_state(client, tokenizer, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.prompts.close()

    app = FastAPI(title="ResiSpec", version=state.version, lifespan=lifespan)
    app.state.resispec = state
    client.on_stats(state.metrics.observe_step)
    errors.install(app)
    for resource in (completions, chat, models, health):
        app.include_router(resource.router)
    # The last one added is the outermost: every answer has an id and a log line, refused ones too.
    app.add_middleware(BodyLimit, max_bytes=int(settings.max_body_bytes))
    if settings.api_key:
        app.add_middleware(ApiKeys, keys=[key.get_secret_value() for key in settings.api_key])
    app.add_middleware(RequestLog, on_failure=state.metrics.failed)
    return app


def _create_state(client: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> AppState:
    info = client.info
    release = version("resispec")
    metrics = Metrics(info, settings.model_names[0], release)
    admission = Admission(info.max_num_seqs + settings.max_queue, metrics.rejected)
    return AppState(
        client=client,
        prompts=Prompts(tokenizer, info.vocab_size),
        settings=settings,
        admission=admission,
        lifecycle=Lifecycle(client, admission, settings.drain_timeout),
        metrics=metrics,
        version=release,
        started=int(time.time()),
    )
