"""What operators ask: ``/health``, ``/ready``, ``/version``, ``/load``, ``/metrics``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from ..lifecycle import Phase
from ..load import LoadBody
from ..openapi import Responses
from ..state import State

router = APIRouter()


class PhaseBody(BaseModel):
    status: Phase


def phases(unavailable: str) -> Responses:
    return {200: {"model": PhaseBody}, 503: {"model": PhaseBody, "description": unavailable}}


@router.get("/health", responses=phases("The engine is dead."), response_model=None)
async def health(state: State) -> JSONResponse:
    """Whether the process is alive; 503 once the engine is dead."""
    phase = state.lifecycle.phase
    return JSONResponse({"status": phase}, 503 if phase is Phase.FAILED else 200)


@router.get("/ready", responses=phases("No new requests are taken."), response_model=None)
async def ready(state: State) -> JSONResponse:
    """Whether new requests are taken; 503 while draining."""
    phase = state.lifecycle.phase
    return JSONResponse({"status": phase}, 200 if phase is Phase.READY else 503)


@router.get("/version")
async def version(state: State) -> dict[str, str]:
    return {"version": state.version}


@router.get("/load")
async def load(state: State) -> LoadBody:
    """How busy the server is: what a load balancer asks."""
    return state.load.body()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, state: State) -> Response:
    content, content_type = state.metrics.render(request.headers.get("accept", ""))
    return Response(content, media_type=content_type)
