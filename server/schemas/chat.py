"""Bodies of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator
from pydantic_core import PydanticCustomError

from .common import MAX_LOGPROBS, Body, GenerationBody
from .logprobs import ChatLogprobs, PromptLogprobs
from .speculation import ChunkStep
from .structured import ResponseFormat, StructuredOutputs
from .usage import Absent, Envelope, MetricsBody, UsageBody
from .validators import only

MAX_MESSAGES = 4096
MAX_PARTS = 4096  # of one message


def check_content(value: object) -> str:
    """The text of a message: a string, or parts of type text, joined by newlines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and 0 < len(value) <= MAX_PARTS:
        texts = [_part_text(part) for part in value]
        return "\n".join(texts)
    raise PydanticCustomError(
        "invalid_value",
        "must be a string or a list of 1 to {most} parts of type text",
        {"most": MAX_PARTS},
    )


def _part_text(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    raise PydanticCustomError(
        "unsupported_parameter", "content part of type {kind} is not supported; text is", {"kind": repr(kind)}
    )


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


Content = Annotated[
    str,
    PlainValidator(
        check_content, json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)]
    ),
]


class Message(Body):
    """One turn. ``developer`` is OpenAI's newer word for ``system``."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None

    # Null or empty in messages that clients send back as they got them.
    refusal: Annotated[Any, only()] = None
    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None

    def for_template(self) -> dict[str, str]:
        """The message as chat templates expect it."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        return message if self.name is None else message | {"name": self.name}


class ChatRequest(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    parallel_tool_calls: Annotated[Any, only(True, False)] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only()] = None
    verbosity: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None

    @property
    def answer_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: Absent[list[int]] = None


class ChatCompletion(Envelope):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: UsageBody
    metrics: Absent[MetricsBody] = None
    prompt_token_ids: Absent[list[int]] = None
    prompt_logprobs: Absent[PromptLogprobs] = None


class Delta(BaseModel):
    role: Absent[Literal["assistant"]] = None
    content: Absent[str] = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: Absent[int | str] = None
    token_ids: Absent[list[int]] = None
    trace: Absent[list[ChunkStep]] = None  # with speculation.trace


class ChatChunk(Envelope):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: UsageBody | None = None
    metrics: Absent[MetricsBody] = None
    prompt_token_ids: Absent[list[int]] = None
    prompt_logprobs: Absent[PromptLogprobs] = None
