"""``GET /v1/requests/{id}/speculation``: how a recent answer was made, step by step."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from ..errors import ApiError
from ..openapi import errors
from ..schemas.speculation import SpeculationTrace, step_body
from ..state import State
from ..step_traces import ChoiceTrace, RequestTrace

router = APIRouter()

PREFIXES = ("chatcmpl-", "cmpl-")  # of answers' ids, before the request's


@router.get("/v1/requests/{request_id}/speculation", responses=errors(400, 404))
async def get_speculation(
    request: Request,
    state: State,
    request_id: Annotated[str, Path(max_length=160, description="The answer's id, or its X-Request-Id.")],
    choice: Annotated[int, Query(ge=0)] = 0,
    start: Annotated[int, Query(ge=0, description="The first step wanted.")] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> SpeculationTrace:
    """The steps of a request that had ``speculation.trace``, for the key that sent it."""
    trace = _find(request_id, request.state.key, state)
    if trace is None:
        raise ApiError(
            404,
            f"No steps are kept of a request {request_id!r} of yours. Only requests with speculation.trace: "
            "true have any, and only the latest of them are kept.",
            code="trace_not_found",
        )
    told = trace.choices.get(choice, ChoiceTrace())
    stop = start + limit
    steps = told.steps(start, stop)
    ids = {candidate.token_id for _, step in steps for candidate in step.candidates}
    strings = state.prompts.strings
    texts = {token_id: strings.data(token_id).decode(errors="replace") for token_id in ids}
    return SpeculationTrace(
        id=request_id,
        choice=choice,
        num_steps=told.num_steps,
        first_step=told.dropped,
        steps=[step_body(index, step, texts) for index, step in steps],
        next=stop if stop < told.num_steps else None,
    )


def _find(request_id: str, key: str, state: State) -> RequestTrace | None:
    names = [request_id, *(request_id.removeprefix(p) for p in PREFIXES if request_id.startswith(p))]
    return next((found for name in names if (found := state.step_traces.find(key, name)) is not None), None)
