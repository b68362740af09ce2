"""What the routes share: one value, made with the app."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from resispec.engine.client import EngineClient
from resispec.engine.outputs import EngineInfo
from resispec.models.compiled.state import CompileState

from .admission import Admission
from .errors import ApiError
from .keys import KeyRing
from .lifecycle import Lifecycle
from .limits import KeyLimits
from .load import Load
from .metrics import Metrics
from .prompts import Prompts
from .responses.store import ResponseStore
from .settings import ServerSettings
from .step_traces import StepTraceStore
from .structured import Grammars
from .tracing import Tracing


@dataclass(frozen=True, slots=True)
class AppState:
    """The parts of a running server."""

    client: EngineClient
    prompts: Prompts
    grammars: Grammars
    settings: ServerSettings
    admission: Admission
    keys: KeyRing
    limits: KeyLimits
    load: Load
    responses: ResponseStore
    step_traces: StepTraceStore
    audits: asyncio.Lock  # held by the audit that runs
    lifecycle: Lifecycle
    metrics: Metrics
    tracing: Tracing | None  # None: no traces are wanted
    version: str
    started: int  # seconds since the epoch

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    @property
    def system_fingerprint(self) -> str:
        """Changes when the same request may get another answer: version, model, format or compilation."""
        identity = f"{self.version}|{self.info.target}|{self.info.number_format}"
        identity += "|compiled" if self.info.compilation.state is CompileState.ON else ""
        return f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:12]}"

    def resolve_model(self, name: str | None) -> str:
        """The name to answer with. Raises ApiError 404 for a model that is not served."""
        names = self.settings.model_names
        if name is None:
            return names[0]
        if name not in names:
            raise ApiError(
                404,
                f"The model {name!r} is not served here; served: {', '.join(names)}",
                param="model",
                code="model_not_found",
            )
        return name


async def get_state(request: Request) -> AppState:  # async: others are run in a thread
    return cast(AppState, request.app.state.resispec)


async def get_scope() -> AsyncIterator[AsyncExitStack]:
    """A stack that is unwound when the answer, streamed or not, has been sent or nobody wants it."""
    async with AsyncExitStack() as stack:
        yield stack


State = Annotated[AppState, Depends(get_state)]
RequestScope = Annotated[AsyncExitStack, Depends(get_scope)]
