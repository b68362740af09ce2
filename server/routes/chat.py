"""``POST /v1/chat/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from ..deadline import set_deadline
from ..errors import invalid
from ..openapi import answers
from ..prompts import layout_options
from ..schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from ..state import AppState, RequestScope, State
from ..tools.reader import AnswerForm
from ..tools.reasoning import BEGIN, may_reason
from ..tools.use import tool_use
from ..translate import check_fields, engine_requests
from ..writers.base import Shown
from ..writers.chat import ChatWriter
from .generate import admit, generate, new_envelope

router = APIRouter(dependencies=[Depends(set_deadline)])


@router.post(
    "/v1/chat/completions", responses=answers(ChatCompletion, ChatChunk, done=True), response_model=None
)
async def create_chat_completion(
    body: ChatRequest, request: Request, state: State, scope: RequestScope
) -> Response:
    """Answer a conversation, laid out by the model's chat template."""
    _check(body, ignore_unknown=state.settings.ignore_unknown_fields)
    envelope = new_envelope("chatcmpl", body, request, state)
    admit(request, state, scope, 1, body.sequences_per_prompt)
    structured = await state.grammars.wanted(body)
    use = await tool_use(body, state.prompts.template, state.prompts.backend, state.grammars)
    if use is not None:
        structured = use.structured or structured
        body = body.model_copy(update={"skip_special_tokens": False})  # a call may open with a special token
    prompt = await state.prompts.chat(
        [message.for_template() for message in body.messages],
        **layout_options(body),
        tools=None if use is None else use.tools,
    )
    requests = engine_requests(
        body,
        state.info,
        [prompt],
        prompt_field="messages",
        default_max_tokens=None,
        bad_words=await state.prompts.bad_words(body.bad_words),
        structured=structured,
        prediction=await state.prompts.tokenize(body.prediction.content, add_special_tokens=False)
        if body.prediction is not None
        else (),
    )
    shown = Shown.of(body, state.prompts.strings)
    form = AnswerForm(
        tools=use.form if use else None,
        reasons=may_reason(state.prompts.template),
        # A grammar of the whole answer leaves no room for reasoning.
        is_reasoning=(structured is None or (use is not None and use.has_text))
        and await _ends_in_reasoning(prompt, state),
    )
    writer = ChatWriter(envelope, requests[0].prompt_token_ids, shown, form)
    return await generate(request, body, requests, writer, state, scope)


async def _ends_in_reasoning(prompt: tuple[int, ...], state: AppState) -> bool:
    """Whether the template has opened the reasoning for the model."""
    if not may_reason(state.prompts.template):
        return False
    return (await state.prompts.decode(list(prompt[-16:]))).rstrip().endswith(BEGIN)


def _check(body: ChatRequest, *, ignore_unknown: bool) -> None:
    check_fields(body, ignore_unknown=ignore_unknown)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "only together with logprobs: true")
    if len({body.max_tokens, body.max_completion_tokens} - {None}) > 1:
        raise invalid("max_completion_tokens", "differs from max_tokens; send one of them")
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("add_generation_prompt", "not together with continue_final_message")
