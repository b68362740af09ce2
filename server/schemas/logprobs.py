"""Log-probabilities in answers, in OpenAI's two shapes and vLLM's one for prompts."""

from __future__ import annotations

from pydantic import BaseModel


class TopLogprob(BaseModel):
    """A token that was likely at a position."""

    token: str
    logprob: float
    bytes: list[int]  # of a token that ends inside a character too


class ContentLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Lists of one length, an entry a token."""

    text_offset: list[int]  # where the token begins in the choice's text
    token_logprobs: list[float | None]  # null: the first token of the prompt
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""By position and token id; the first position has none."""
