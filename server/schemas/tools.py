"""Tools in requests and answers, in OpenAI's words."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from .common import Body
from .usage import Absent

MAX_TOOLS = 128
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class FunctionDefinition(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: no arguments
    strict: bool | None = None  # with tool_choice auto, too, the arguments follow the schema


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body):
    name: str


class NamedToolChoice(Body):
    type: Literal["function"]
    function: FunctionName


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedToolChoice


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
