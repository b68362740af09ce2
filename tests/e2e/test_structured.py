"""Structured answers through the unmodified openai SDK: `parse` with pydantic models, streamed and not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

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


def test_a_bad_schema_is_named_and_disturbs_nobody(client):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError, match=r"at properties\.a: .*uniqueItems"):
        client.chat.completions.create(
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
            stream=True,
            **SETTINGS,
        )
    assert client.chat.completions.create(messages=MESSAGES, **SETTINGS).choices[0].message.content
