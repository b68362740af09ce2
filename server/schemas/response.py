"""A response, as ``/v1/responses`` answers it, and the events of its stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from .logprobs import ContentLogprob
from .response_tools import FunctionToolBody, ItemStatus, NamedFunctionBody, OutputFunctionCall
from .tools import ChoiceWord
from .usage import Absent, MetricsBody, UsageBody

Status = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
LifecycleType = Literal[
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] = []
    logprobs: list[ContentLogprob]


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


OutputItem = Annotated[OutputMessage | OutputFunctionCall, Field(discriminator="type")]


class InputTokensDetails(BaseModel):
    cached_tokens: int


class OutputTokensDetails(BaseModel):
    """Drafted tokens that the target kept, and those it did not, are this server's addition."""

    reasoning_tokens: Literal[0] = 0
    accepted_prediction_tokens: Absent[int] = None
    rejected_prediction_tokens: Absent[int] = None


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: UsageBody) -> ResponseUsage:
        """The same figures under the names of this endpoint."""
        details = usage.completion_tokens_details
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                accepted_prediction_tokens=details.accepted_prediction_tokens if details else None,
                rejected_prediction_tokens=details.rejected_prediction_tokens if details else None,
            ),
            total_tokens=usage.total_tokens,
        )


class ResponseError(BaseModel):
    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(BaseModel):
    """``request_timeout`` and ``server_shutdown`` are this server's additions."""

    reason: Literal["max_output_tokens", "request_timeout", "server_shutdown"]


class TextConfig(BaseModel):
    format: dict[str, Any]  # as it was asked for


class Response(BaseModel):
    id: str
    object: Literal["response"] = "response"
    created_at: int  # seconds since the epoch
    completed_at: int | None = None
    status: Status
    background: Literal[False] = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float  # what was used, the model's own default included
    text: TextConfig
    tool_choice: ChoiceWord | NamedFunctionBody
    tools: list[FunctionToolBody]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    metrics: Absent[MetricsBody] = None


class Deleted(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class Event(BaseModel):
    """One event of a stream; ``sequence_number`` counts them from 0."""

    type: str
    sequence_number: int


class LifecycleEvent(Event):
    type: LifecycleType
    response: Response


class ItemEvent(Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(Event):
    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: Literal[0] = 0
    part: OutputText


class TextDeltaEvent(Event):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    item_id: str
    output_index: int
    content_index: Literal[0] = 0
    delta: str
    logprobs: list[ContentLogprob]


class TextDoneEvent(Event):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    item_id: str
    output_index: int
    content_index: Literal[0] = 0
    text: str
    logprobs: list[ContentLogprob]


class ArgumentsDeltaEvent(Event):
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(Event):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    item_id: str
    output_index: int
    name: str
    arguments: str
