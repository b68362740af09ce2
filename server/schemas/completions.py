"""Bodies of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PlainValidator

from .common import MAX_LOGPROBS, GenerationBody
from .logprobs import CompletionLogprobs, PromptLogprobs
from .speculation import ChunkStep
from .structured import ResponseFormat, StructuredOutputs
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
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    max_tokens: Annotated[int | None, Field(ge=0)] = None  # 0: only to score the prompt

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    suffix: Annotated[Any, only("")] = None
    best_of: Annotated[Any, only(1)] = None

    @property
    def answer_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def scored_prompt(self) -> int | None:
        echoed = self.logprobs if self.echo else None
        wanted = [top for top in (echoed, self.prompt_logprobs) if top is not None]
        return max(wanted, default=None)


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: Absent[list[int]] = None
    prompt_token_ids: Absent[list[int]] = None
    prompt_logprobs: Absent[PromptLogprobs] = None
    trace: Absent[list[ChunkStep]] = None  # in a stream, with speculation.trace


class Completion(Envelope):
    """An answer, or a chunk of a streamed one."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: UsageBody | None = None
    metrics: Absent[MetricsBody] = None
