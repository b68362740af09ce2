"""``/v1/responses``: create, retrieve, cancel, delete."""

from __future__ import annotations

import json
import uuid

from fastapi import APIRouter, Depends, Request
from fastapi import Response as HttpResponse

from ..answers import answer_whole, event_stream
from ..deadline import set_deadline
from ..errors import ApiError, invalid
from ..openapi import EVENTS, answers, errors, link
from ..portions import Portions
from ..responses.run import ResponseRun
from ..responses.store import Finished, Kept, Turn
from ..responses.turns import as_turns
from ..responses.writer import ResponseWriter
from ..schemas.response import Deleted, Response
from ..schemas.responses import ResponsesRequest
from ..state import AppState, RequestScope, State
from ..tools.use import tool_use
from ..translate import check_fields, engine_requests
from ..writers.base import Shown
from .generate import admit, start

router = APIRouter()

LINKS = {name: link(name, "response_id") for name in ("get_response", "cancel_response", "delete_response")}


@router.post(
    "/v1/responses",
    responses=answers(Response, *EVENTS, done=False, links=LINKS),
    response_model=None,
    dependencies=[Depends(set_deadline)],
)
async def create_response(
    body: ResponsesRequest, request: Request, state: State, scope: RequestScope
) -> HttpResponse:
    """Answer a text or a conversation, laid out by the model's chat template."""
    check_fields(body, ignore_unknown=state.settings.ignore_unknown_fields)
    if body.top_logprobs and body.answer_logprobs is None:
        raise invalid("top_logprobs", "only together with include: ['message.output_text.logprobs']")
    model = state.resolve_model(body.model)
    store = _wants_store(body, state)
    turns = as_turns(body.input, _earlier(body, request, state))
    admit(request, state, scope, 1, 1)
    structured = await state.grammars.wanted(body)
    use = await tool_use(body, state.prompts.template, state.prompts.backend, state.grammars)
    if use is not None:
        structured = use.structured or structured
        body = body.model_copy(update={"skip_special_tokens": False})  # a call may open with a special token
    system: list[Turn] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    prompt = await state.prompts.chat(
        [*system, *turns],
        add_generation_prompt=True,
        continue_final_message=False,
        template_kwargs=body.chat_template_kwargs or {},
        field="input",
        tools=None if use is None else use.tools,
    )
    requests = engine_requests(
        body,
        state.info,
        [prompt],
        prompt_field="input",
        default_max_tokens=None,
        bad_words=await state.prompts.bad_words(body.bad_words),
        structured=structured,
    )
    response_id = f"resp_{uuid.uuid4().hex}"
    logprobs = Shown.of(body, state.prompts.strings).logprobs
    form = None if use is None else use.form
    writer = ResponseWriter(response_id, model, body, requests[0], form, logprobs, store=store)
    generation = start(request, body, requests, state, scope)
    key = request.state.key

    def finish() -> None:
        if state.responses.find(key, writer.id) is run:  # and neither deleted nor pushed out meanwhile
            finished = Finished(run.conversation, run.snapshot())
            state.responses.put(key, writer.id, finished, _size(finished))

    cut = body.stream_interval is not None or logprobs is not None
    run = ResponseRun(writer, generation, turns, finish, Portions(body.stream_interval) if cut else None)
    scope.callback(run.close)
    if store:
        state.responses.put(key, writer.id, run, _size(run))
    if body.stream:
        return event_stream(run.events(), state.settings.sse_keep_alive)
    return await answer_whole(request, run.whole())


@router.get("/v1/responses/{response_id}", responses=errors(400, 404))
async def get_response(response_id: str, request: Request, state: State, stream: bool = False) -> Response:
    """A response that was stored, as far as it has come."""
    if stream:
        raise invalid("stream", "events are not kept; leave it out")
    return _find(response_id, request, state).snapshot()


@router.post("/v1/responses/{response_id}/cancel", responses=errors(400, 404))
async def cancel_response(response_id: str, request: Request, state: State) -> Response:
    """End a stored response that is under way; whoever reads it gets its end."""
    kept = _find(response_id, request, state)
    if not kept.cancel():
        raise invalid(None, f"The response has ended already: it is {kept.snapshot().status}")
    return kept.snapshot()


@router.delete("/v1/responses/{response_id}", responses=errors(404))
async def delete_response(response_id: str, request: Request, state: State) -> Deleted:
    """Forget a stored response. One that is under way goes on for whoever reads it."""
    if not state.responses.delete(request.state.key, response_id):
        raise _not_found(response_id)
    return Deleted(id=response_id)


def _wants_store(body: ResponsesRequest, state: AppState) -> bool:
    if body.store and not state.responses.enabled:
        raise invalid("store", "this server keeps no responses; send false", "unsupported_parameter")
    return state.responses.enabled and body.store is not False


def _earlier(body: ResponsesRequest, request: Request, state: AppState) -> tuple[Turn, ...]:
    """The turns that the body goes on from."""
    if body.previous_response_id is None:
        return ()
    kept = state.responses.find(request.state.key, body.previous_response_id)
    if kept is None:
        raise invalid(
            "previous_response_id", "no such response is stored here", "previous_response_not_found"
        )
    status = kept.snapshot().status
    if status not in ("completed", "incomplete"):
        raise invalid("previous_response_id", f"that response is {status}; only a finished one can go on")
    return kept.conversation


def _find(response_id: str, request: Request, state: AppState) -> Kept:
    kept = state.responses.find(request.state.key, response_id)
    if kept is None:
        raise _not_found(response_id)
    return kept


def _not_found(response_id: str) -> ApiError:
    return ApiError(
        404, f"No response {response_id[:128]!r} is stored here", param="response_id", code="not_found"
    )


def _size(kept: Kept) -> int:
    """Bytes of text that are kept with it."""
    return len(json.dumps(kept.conversation)) + len(kept.snapshot().model_dump_json())
