"""Bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from .chat import Message
from .common import Body


class TokenizeRequest(Body):
    """Either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message] | None, Field(min_length=1, fail_fast=True)] = None
    add_special_tokens: bool | None = None  # unset: to a text; a chat template has its own
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None  # as the vocabulary spells them; null when not asked for


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


class Detokenized(BaseModel):
    prompt: str
