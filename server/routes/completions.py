"""``POST /v1/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from ..deadline import set_deadline
from ..openapi import answers
from ..schemas.completions import Completion, CompletionRequest
from ..state import AppState, RequestScope, State
from ..translate import check_fields, engine_requests
from ..writers import CompletionWriter
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
        body, state.info, prompts, prompt_field="prompt", default_max_tokens=DEFAULT_MAX_TOKENS
    )
    echo = await _echo(body, state) if body.echo else None
    writer = CompletionWriter(
        envelope, [item.prompt_token_ids for item in requests], echo, bool(body.return_token_ids)
    )
    return await generate(request, body, requests, writer, state, scope)


async def _echo(body: CompletionRequest, state: AppState) -> list[str]:
    """Each choice's prompt as text."""
    texts = [
        prompt if isinstance(prompt, str) else await state.prompts.decode(prompt) for prompt in body.prompt
    ]
    return [text for text in texts for _ in range(body.sequences_per_prompt)]
