"""Bodies of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from .common import MAX_LOGPROBS, Body, GenerationBody
from .logprobs import ChatLogprobs, PromptLogprobs
from .speculation import ChunkStep
from .structured import ResponseFormat, StructuredOutputs
from .tools import (
    MAX_TOOLS,
    AskedTools,
    NamedToolChoice,
    Tool,
    ToolCall,
    ToolCallBody,
    ToolCallDelta,
    ToolChoice,
)
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


def _check_message_content(value: object, info: ValidationInfo) -> str | None:
    """As `check_content`; an assistant that calls tools need not say anything."""
    if value is None and info.data.get("tool_calls"):
        return None
    if value is None:
        raise PydanticCustomError(
            "invalid_value", "this field is required: a string or a list of parts of type text"
        )
    return check_content(value)


Content = Annotated[
    str | None,
    PlainValidator(
        _check_message_content,
        json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)] | None,
    ),
    Field(validate_default=True),
]


class Message(Body):
    """One turn. ``developer`` is OpenAI's newer word for ``system``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[ToolCall] | None = None  # of the assistant
    tool_call_id: str | None = None  # of a tool: the call it answers
    content: Content = None
    name: str | None = None
    reasoning_content: str | None = None  # of the assistant; the template decides what becomes of it

    # Null or empty in messages that clients send back as they got them.
    refusal: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None

    @model_validator(mode="after")
    def _calls_are_the_assistants(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("invalid_value", "tool_calls are the assistant's only")
        if self.tool_call_id is not None and self.role != "tool":
            raise PydanticCustomError("invalid_value", "tool_call_id goes with role tool only")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: arguments as values, not as text."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class Prediction(Body):
    """What the answer is expected to be, such as the file that it is to edit."""

    type: Literal["content"]
    content: Annotated[
        str,
        PlainValidator(
            check_content, json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)]
        ),
    ]


class ChatRequest(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
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

    @property
    def asked_tools(self) -> AskedTools:
        choice = self.tool_choice or "auto"
        named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        return AskedTools(
            functions=[tool.function for tool in self.tools or ()],
            choice="required" if isinstance(choice, NamedToolChoice) else choice,
            named=named,
            several=self.parallel_tool_calls is not False,
            prefix=".function",
        )

    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: Absent[str] = None
    tool_calls: Absent[list[ToolCallBody]] = None


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
    reasoning_content: Absent[str] = None
    tool_calls: Absent[list[ToolCallDelta]] = None


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
