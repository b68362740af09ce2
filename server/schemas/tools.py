"""Tools in requests and answers, in OpenAI's words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from .common import Body
from .usage import Absent

MAX_TOOLS = 128
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


def check_type(value: object) -> object:
    """Refuse every type of tool but functions, by its name."""
    if isinstance(value, str) and value != "function":
        raise PydanticCustomError(
            "unsupported_parameter", "type {kind} is not supported; function is", {"kind": repr(value[:64])}
        )
    return value


FunctionType = Annotated[Literal["function"], BeforeValidator(check_type)]


class FunctionDefinition(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: no arguments
    strict: bool | None = None  # with tool_choice auto, too, the arguments follow the schema


class Tool(Body):
    type: FunctionType
    function: FunctionDefinition


class FunctionName(Body):
    name: str


class NamedToolChoice(Body):
    type: FunctionType
    function: FunctionName


def kind_of_choice(value: object) -> str:
    """The branch of a choice, by a name that is no field."""
    return "a word" if isinstance(value, str) else "a function"


ChoiceWord: TypeAlias = Literal["none", "auto", "required"]
AnyWord = Annotated[ChoiceWord, Tag("a word")]
ToolChoice: TypeAlias = Annotated[
    AnyWord | Annotated[NamedToolChoice, Tag("a function")], Discriminator(kind_of_choice)
]


@dataclass(frozen=True, slots=True)
class AskedTools:
    """The functions that an answer may call, whatever the endpoint.

    named: the one function that is to be called; ``choice`` is required then. several: an answer may have
    more than one call. prefix: where a function's fields stand in its tool, for errors.
    """

    functions: Sequence[FunctionDefinition]
    choice: ChoiceWord
    named: str | None
    several: bool
    prefix: Literal["", ".function"]


class CalledFunction(Body):
    name: str
    arguments: str


class ToolCall(Body):
    """A call in a message that a client sends back."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it. Arguments that are no JSON stay text."""
        arguments: Any = self.function.arguments
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


class FunctionCallBody(BaseModel):
    name: str
    arguments: str


class ToolCallBody(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCallBody


class FunctionCallDelta(BaseModel):
    name: Absent[str] = None
    arguments: Absent[str] = None


class ToolCallDelta(BaseModel):
    index: int
    id: Absent[str] = None
    type: Absent[Literal["function"]] = None
    function: FunctionCallDelta
