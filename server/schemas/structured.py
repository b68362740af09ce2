"""What an answer must look like: OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .common import Body

MAX_CHOICES = 4096


class JsonSchemaFormat(Body):
    """``strict`` makes no difference: every schema is followed to the letter."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError(
                "invalid_value", "json_schema goes with type json_schema, and with no other"
            )
        return self


class StructuredOutputs(Body):
    """Exactly one of these."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None  # a schema, or its text
    json_object: Literal[True] | None = None
    regex: Annotated[str | None, Field(min_length=1)] = None
    choice: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None,
        Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
    ] = None
    grammar: Annotated[str | None, Field(min_length=1)] = None  # Lark or GBNF

    @model_validator(mode="after")
    def _one_kind(self) -> StructuredOutputs:
        kinds = (self.json_, self.json_object, self.regex, self.choice, self.grammar)
        if sum(kind is not None for kind in kinds) != 1:
            raise PydanticCustomError(
                "invalid_value", "needs exactly one of json, json_object, regex, choice and grammar"
            )
        return self
