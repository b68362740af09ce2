"""``POST /v1/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from ..deadline import set_deadline
from ..openapi import answers
from ..schemas.completions import Completion, CompletionRequest
from ..state import AppState, RequestScope, State
from ..translate import check_fields, engine_requests
from ..writers.base import Shown
from ..writers.completions import CompletionWriter, Echo
from .generate import admit, generate, new_envelope

router = APIRouter(dependencies=[Depends(set_deadline)])

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@router.post("/v1/completions", responses=answers(Completion, Completion, done=True), response_model=None)
async def create_completion(
    body: CompletionRequest, request: Request, state: State, scope: RequestScope
) -> Response:
    """Continue one or several prompts."""
    check_fields(body, ignore_unknown=state.settings.ignore_unknown_fields)
    envelope = new_envelope("cmpl", body, request, state)
    admit(request, state, scope, len(body.prompt), body.sequences_per_prompt)
    prompts = [await state.prompts.encode(prompt) for prompt in body.prompt]
    requests = engine_requests(
        body,
        state.info,
        prompts,
        prompt_field="prompt",
        default_max_tokens=DEFAULT_MAX_TOKENS,
        bad_words=await state.prompts.bad_words(body.bad_words),
        structured=await state.grammars.wanted(body),
    )
    used = [item.prompt_token_ids for item in requests]
    echo = await _echo(body, prompts, used, state) if body.echo else None
    writer = CompletionWriter(envelope, used, echo, Shown.of(body, state.prompts.strings))
    return await generate(request, body, requests, writer, state, scope)


async def _echo(
    body: CompletionRequest, encoded: list[tuple[int, ...]], used: list[tuple[int, ...]], state: AppState
) -> list[Echo]:
    """Each choice's prompt as text: as it was sent, unless it was truncated.

    encoded: the token ids of each prompt. used: those each choice was given.
    """
    echoes: list[Echo] = []
    for prompt, before, after in zip(body.prompt, encoded, used[:: body.sequences_per_prompt], strict=True):
        is_whole = isinstance(prompt, str) and before == after
        text = prompt if isinstance(prompt, str) and is_whole else await state.prompts.decode(list(after))
        offsets = await state.prompts.offsets(after, text) if body.logprobs is not None else ()
        echoes += [Echo(text, offsets)] * body.sequences_per_prompt
    return echoes
