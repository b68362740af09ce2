"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from .common import MAX_LOGPROBS, Body, GenerationBody, StreamOptions
from .response_tools import FunctionCall, FunctionChoice, FunctionTool, ItemStatus, NamedFunction
from .structured import StructuredOutputs
from .tools import MAX_TOOLS, AskedTools
from .validators import check_unicode, only

PARTS = ("input_text", "output_text")


def check_content(value: object) -> str:
    """The text of an item: a string, or parts with text, joined by newlines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return "\n".join(_part_text(part) for part in value)
    raise PydanticCustomError("invalid_value", "must be a string or a list of parts with text")


def _part_text(part: object) -> str:
    if isinstance(part, dict) and part.get("type") in PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    raise PydanticCustomError(
        "unsupported_parameter",
        "content part of type {kind} is not supported; input_text and output_text are",
        {"kind": repr(kind)},
    )


def as_items(value: object) -> object:
    """A text is one item of the user's."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class InputText(BaseModel):
    type: Literal["input_text", "output_text"]
    text: str


Content = Annotated[
    str,
    PlainValidator(
        check_content, json_schema_input_type=str | Annotated[list[InputText], Field(min_length=1)]
    ),
]


class InputMessage(Body):
    """A message of anyone's, an assistant's sent back as it came among them."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    # Without effect: they say how an output item came about.
    id: str | None = None
    status: ItemStatus | None = None

    def for_template(self) -> dict[str, str]:
        """The turn as chat templates expect it."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class FunctionCallOutput(Body):
    """What a function gave for the call of that id."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Content

    # Without effect.
    id: str | None = None
    status: ItemStatus | None = None


ITEM_TYPES = ("message", "function_call", "function_call_output")


def _kind_of_item(value: object) -> str | None:
    """The branch of an item, by a name that is no field; None: there is no such type."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    kind = "message" if kind is None else kind
    return f"a {kind}" if kind in ITEM_TYPES else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("a message")]
    | Annotated[FunctionCall, Tag("a function_call")]
    | Annotated[FunctionCallOutput, Tag("a function_call_output")],
    Discriminator(
        _kind_of_item,
        custom_error_type="unsupported_parameter",
        custom_error_message=f"no item of a type supported here: {', '.join(ITEM_TYPES)}",
    ),
]

InputItems = Annotated[
    list[InputItem],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(as_items, json_schema_input_type=str | list[InputItem]),
]


class TextFormat(Body):
    """``strict`` makes no difference: every schema is followed to the letter."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> TextFormat:
        given = (self.name, self.description, self.schema_, self.strict)
        if self.type != "json_schema" and any(value is not None for value in given):
            raise PydanticCustomError("invalid_value", "a schema goes with type json_schema only")
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise PydanticCustomError("invalid_value", "type json_schema needs a name and a schema")
        return self


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Annotated[Any, only("medium")] = None


class ResponseStreamOptions(StreamOptions):
    include_obfuscation: Annotated[Any, only(False)] = None
    include_usage: Annotated[Any, only()] = None  # the last event always has it
    continuous_usage_stats: Annotated[Any, only()] = None


MetadataKey = Annotated[str, Field(max_length=64), AfterValidator(check_unicode)]
MetadataValue = Annotated[str, Field(max_length=512), AfterValidator(check_unicode)]


class ResponsesRequest(GenerationBody):
    """What a response is made from. Sampling parameters beyond OpenAI's are those of the other endpoints."""

    input: InputItems
    instructions: str | None = None
    previous_response_id: Annotated[str | None, Field(max_length=128)] = None
    max_output_tokens: Annotated[int | None, Field(ge=1)] = None
    include: Annotated[list[Literal["message.output_text.logprobs"]] | None, Field(fail_fast=True)] = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    store: bool | None = None
    text: TextOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[list[FunctionTool] | None, Field(max_length=MAX_TOOLS, fail_fast=True)] = None
    tool_choice: FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue] | None, Field(max_length=16)] = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream_options: ResponseStreamOptions | None = None

    # Known, not honoured.
    background: Annotated[Any, only(False)] = None
    conversation: Annotated[Any, only()] = None
    context_management: Annotated[Any, only([])] = None
    max_tool_calls: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    reasoning: Annotated[Any, only({})] = None
    truncation: Annotated[Any, only("disabled")] = None

    # Of the other endpoints; here they have another name or no place.
    max_tokens: Annotated[Any, only()] = None
    n: Annotated[Any, only(1)] = None
    prompt_logprobs: Annotated[Any, only()] = None
    request_id: Annotated[Any, only()] = None
    return_token_ids: Annotated[Any, only(False)] = None

    def token_limit(self) -> tuple[str, int | None]:
        return "max_output_tokens", self.max_output_tokens

    @property
    def answer_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.include else None

    @property
    def asked_tools(self) -> AskedTools:
        choice = self.tool_choice or "auto"
        named = choice.name if isinstance(choice, NamedFunction) else None
        return AskedTools(
            functions=self.tools or (),
            choice="required" if isinstance(choice, NamedFunction) else choice,
            named=named,
            several=self.parallel_tool_calls is not False,
            prefix="",
        )
