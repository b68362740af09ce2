"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from resispec.engine.outputs import EngineInfo

from ..openapi import errors
from ..state import AppState, State

router = APIRouter()


class VerifierInfo(BaseModel):
    name: str
    exact: bool


class SpeculationLimits(BaseModel):
    """What a request's ``speculation`` may ask for."""

    mode: str  # unless the request names another
    verifier: str  # the same
    verifiers: list[VerifierInfo]
    max_nodes: int
    max_depth: int
    proposers: list[str]  # all of them are used unless a request names some


class Compilation(BaseModel):
    """Of the target's layers, with ``--compile``."""

    state: Literal["off", "building", "on", "failed"]
    note: str  # how long it took, or why it failed; empty: off


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "resispec"
    root: str  # what the server was told to load
    draft: str | None
    dtype: str  # what the target computes in
    quantization: str  # of its weights: none, int8 or int4
    draft_quantization: str | None  # of the draft's weights: none or int8; null: there is no draft
    compilation: Compilation
    max_model_len: int
    generation_defaults: dict[str, float]  # of requests that do not say
    speculation: SpeculationLimits | None  # null: nothing is proposed
    traces: bool  # whether requests may have speculation.trace


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/v1/models")
async def list_models(state: State) -> ModelList:
    return ModelList(data=[_model(name, state) for name in state.settings.model_names])


@router.get("/v1/models/{model_id:path}", responses=errors(404))
async def get_model(model_id: str, state: State) -> Model:
    return _model(state.resolve_model(model_id), state)


def _model(name: str, state: AppState) -> Model:
    info = state.info
    return Model(
        id=name,
        created=state.started,
        root=info.target,
        draft=info.draft,
        dtype=info.dtype,
        quantization=info.quantization,
        draft_quantization=info.draft_quantization,
        compilation=Compilation(state=info.compilation.state.value, note=info.compilation.note),
        max_model_len=info.max_model_len,
        generation_defaults=info.generation_defaults,
        speculation=_speculation(info) if info.proposers else None,
        traces=state.step_traces.enabled,
    )


def _speculation(info: EngineInfo) -> SpeculationLimits:
    return SpeculationLimits(
        mode=info.speculation,
        verifier=info.verifier,
        verifiers=[
            VerifierInfo(name=name, exact=name not in info.inexact_verifiers) for name in info.verifiers
        ],
        max_nodes=info.max_tree_nodes,
        max_depth=info.max_tree_depth,
        proposers=list(info.proposers),
    )
