"""What operators ask: ``/health``, ``/ready``, ``/version``, ``/load``, ``/metrics``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..lifecycle import Phase
from ..load import LoadBody
from ..state import State

router = APIRouter()


@router.get("/health")
async def health(state: State) -> JSONResponse:
    """Whether the process is alive; 503 once the engine is dead."""
    phase = state.lifecycle.phase
    return JSONResponse({"status": phase}, 503 if phase is Phase.FAILED else 200)


@router.get("/ready")
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


@router.get("/metrics")
async def metrics(request: Request, state: State) -> Response:
    content, content_type = state.metrics.render(request.headers.get("accept", ""))
    return Response(content, media_type=content_type)
