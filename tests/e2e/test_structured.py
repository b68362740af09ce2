"""Structured answers through the unmodified openai SDK: `parse` with pydantic models, streamed and not."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from resispec.server.structured import COMPILE_SECONDS

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Who?"}]
SETTINGS: dict[str, Any] = {"model": "tiny", "max_tokens": 400}


class Kind(Enum):
    PERSON = "person"
    PLACE = "place"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Part(Closed):
    label: Literal["first", "second"]
    weight: Annotated[int, Field(ge=0, le=99)]


class Thing(Closed):
    name: Annotated[str, Field(max_length=8)]
    kind: Kind
    parts: Annotated[list[Part], Field(max_length=2)]
    note: Annotated[str, Field(pattern="^[a-z]{1,4}$")] | None


@pytest.fixture
def client(tiny_server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_parse(client, temperature):
    answer = client.chat.completions.parse(
        messages=MESSAGES, response_format=Thing, temperature=temperature, seed=4, n=3, **SETTINGS
    )
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Thing)
    text = answer.choices[0].message.content
    assert text.startswith('{"name": "'), "keys in the schema's order, and one layout"


def test_a_stream_says_the_same(client):
    with client.chat.completions.stream(
        messages=MESSAGES, response_format=Thing, temperature=0, **SETTINGS
    ) as stream:
        events = list(stream)
        streamed = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.parse(messages=MESSAGES, response_format=Thing, temperature=0, **SETTINGS)
    assert streamed.parsed == whole.choices[0].message.parsed
    assert any(event.type == "content.delta" for event in events)


def test_a_capped_answer_says_so(client):
    settings = SETTINGS | {"max_tokens": 5}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=MESSAGES, response_format=Thing, **settings)


def test_speculation_changes_nothing(client):
    def ask(enabled: bool) -> str:
        answer = client.chat.completions.create(
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}},
            temperature=0,
            extra_body={"speculation": {"enabled": enabled}},
            **SETTINGS,
        )
        return str(answer.choices[0].message.content)

    assert ask(True) == ask(False)
    json.loads(ask(True))


SCHEMA = Thing.model_json_schema()


def test_other_forms(client):
    def ask(**form: Any) -> str:
        answer = client.chat.completions.create(
            messages=MESSAGES, extra_body={"structured_outputs": form}, **SETTINGS
        )
        return str(answer.choices[0].message.content)

    assert ask(choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch("[ab]{3}c?", ask(regex="[ab]{3}c?"))
    assert ask(grammar='start: "x" "y"') == "xy"
    assert ask(grammar='root ::= "p" | "q"') in ("p", "q")


def holding(part: object, **definitions: object) -> dict[str, Any]:
    """A schema with ``part`` two levels down."""
    inner = {"type": "object", "properties": {"a": part}, "required": ["a"]}
    items = {"type": "array", "items": inner, "minItems": 1}
    return {"type": "object", "properties": {"list": items}, "required": ["list"], **definitions}


INSIDE = r"at properties\.list\.items\.properties\.a: .*"
BAD_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "cannot be satisfied": (holding({"type": "string", "enum": [1]}), INSIDE + "Unsatisfiable"),
    "a bound below another": (holding({"type": "integer", "minimum": 5, "maximum": 3}), INSIDE + "minimum"),
    "a regex that explodes": (
        holding({"type": "string", "pattern": "^((a{200}){200}){200}$"}),
        INSIDE + "forces",
    ),
    "recursion without end": (
        holding({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}}),
        INSIDE + "requires itself",
    ),
    "megabytes": (holding({"enum": ["x" * 1000] * 2000}), "characters"),
    "very deep": (json.loads('{"items": ' * 200 + "{}" + "}" * 200), "nested"),
    "what is not followed": (holding({"type": "array", "uniqueItems": True}), INSIDE + "uniqueItems"),
}


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
BAD_TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "two of one name": ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    "none of them": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
    ),
}


@pytest.fixture
def others(client) -> Iterator[None]:
    """Somebody's answers are streamed all the while, one after the other, and none of them changes."""
    asked = {"messages": MESSAGES, "temperature": 0, **SETTINGS, "extra_body": {"ignore_eos": True}}
    alone = client.chat.completions.create(**asked).choices[0].message.content
    texts: list[str] = []
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            chunks = client.chat.completions.create(stream=True, **asked)
            texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))

    listener = threading.Thread(target=listen)
    listener.start()
    yield
    over.set()
    listener.join()
    assert set(texts) == {alone}


@pytest.mark.usefixtures("others")
def test_bad_schemas_are_named_in_time_and_disturb_nobody(client):
    for name, (schema, message) in BAD_SCHEMAS.items():
        began = time.monotonic()
        with pytest.raises(openai.BadRequestError, match=f"(?s){message}") as caught:
            client.chat.completions.create(
                messages=MESSAGES,
                response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
                stream=True,
                **SETTINGS,
            )
        assert caught.value.param == "response_format.json_schema.schema", name
        assert time.monotonic() - began < COMPILE_SECONDS, name


@pytest.mark.usefixtures("others")
def test_bad_tools_are_named_and_disturb_nobody(client):
    for name, (tools, field) in BAD_TOOLS.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(messages=MESSAGES, **tools, **SETTINGS)
        assert caught.value.param == field, name
