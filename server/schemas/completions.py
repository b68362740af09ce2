"""Bodies of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PlainValidator

from .common import GenerationBody
from .usage import Absent, Envelope, MetricsBody, UsageBody
from .validators import check_prompt, only

T = TypeVar("T")
NotEmpty = Annotated[T, Field(min_length=1)]
TokenIds = list[Annotated[int, Field(ge=0)]]

Prompts = Annotated[
    list[str] | list[list[int]],
    PlainValidator(
        check_prompt,
        json_schema_input_type=NotEmpty[str]
        | NotEmpty[list[NotEmpty[str]]]
        | NotEmpty[TokenIds]
        | NotEmpty[list[NotEmpty[TokenIds]]],
    ),
]


class CompletionRequest(GenerationBody):
    """``prompt`` is a list after validation: several prompts make several choices."""

    prompt: Prompts
    echo: bool | None = None

    logprobs: Annotated[Any, only()] = None
    suffix: Annotated[Any, only("")] = None
    best_of: Annotated[Any, only(1)] = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: Absent[list[int]] = None
    prompt_token_ids: Absent[list[int]] = None


class Completion(Envelope):
    """An answer, or a chunk of a streamed one."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: UsageBody | None = None
    metrics: Absent[MetricsBody] = None
