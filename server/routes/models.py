"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from ..openapi import errors
from ..state import AppState, State

router = APIRouter()


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "resispec"
    root: str  # what the server was told to load
    draft: str | None
    max_model_len: int


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
        max_model_len=info.max_model_len,
    )
