"""Tools in the words of ``/v1/responses``, and the items of a conversation that calls them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Discriminator, Field, Tag

from .common import Body
from .tools import AnyWord, CalledFunction, FunctionDefinition, FunctionType, ToolCall, kind_of_choice

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class _Typed(Body):
    type: FunctionType


class FunctionTool(FunctionDefinition, _Typed):
    """The type is checked first: tools of other types have other fields, and are refused by their type."""


class NamedFunction(Body):
    type: FunctionType
    name: str


FunctionChoice: TypeAlias = Annotated[
    AnyWord | Annotated[NamedFunction, Tag("a function")], Discriminator(kind_of_choice)
]


class FunctionCall(Body):
    """A call of the model's, sent back as it came."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: str

    # Without effect: they say how the item came about.
    id: str | None = None
    status: ItemStatus | None = None

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates expect it in an assistant's message."""
        called = CalledFunction(name=self.name, arguments=self.arguments)
        return ToolCall(id=self.call_id, function=called).for_template()


class FunctionToolBody(BaseModel):
    """A tool as it was asked for."""

    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class NamedFunctionBody(BaseModel):
    type: Literal["function"] = "function"
    name: str


class OutputFunctionCall(BaseModel):
    """A call in an answer. ``call_id`` is what its output refers to."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
