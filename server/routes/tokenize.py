"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter

from ..errors import invalid
from ..openapi import errors
from ..prompts import layout_options
from ..schemas.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from ..state import State
from ..translate import refuse_unknown

router = APIRouter()


@router.post("/tokenize", responses=errors(400, 404, 413))
async def tokenize(body: TokenizeRequest, state: State) -> Tokenized:
    """The token ids of a text, or of a conversation laid out by the model's chat template."""
    refuse_unknown(body, ignore=state.settings.ignore_unknown_fields)
    state.resolve_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "send either prompt or messages")
    token_ids: tuple[int, ...]
    if body.messages is not None:
        if body.add_special_tokens:
            raise invalid("add_special_tokens", "the chat template adds what belongs there; leave it out")
        token_ids = await state.prompts.chat(
            [message.for_template() for message in body.messages],
            **layout_options(body),
        )
    else:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(body, name) is not None:
                raise invalid(name, "goes with messages only")
        token_ids = await state.prompts.tokenize(
            body.prompt or "", add_special_tokens=body.add_special_tokens is not False
        )
    return Tokenized(
        count=len(token_ids),
        max_model_len=state.info.max_model_len,
        tokens=list(token_ids),
        token_strs=state.prompts.names(token_ids) if body.return_token_strs else None,
    )


@router.post("/detokenize", responses=errors(400, 404, 413))
async def detokenize(body: DetokenizeRequest, state: State) -> Detokenized:
    """The text of token ids, special tokens spelled out."""
    refuse_unknown(body, ignore=state.settings.ignore_unknown_fields)
    state.resolve_model(body.model)
    for token_id in body.tokens:
        if token_id >= state.info.vocab_size:
            raise invalid("tokens", f"token id {token_id} is not in [0, {state.info.vocab_size})")
    return Detokenized(prompt=await state.prompts.decode(body.tokens))
