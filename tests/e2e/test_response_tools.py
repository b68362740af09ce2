"""Tools of responses through the unmodified openai SDK: whole, streamed, parsed, and there and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"model": "tiny", "max_output_tokens": 400}


class Weather(BaseModel):
    """How the weather will be."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)
    note: str = Field(max_length=5)


def tool(model: type[BaseModel], name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": model.model_json_schema(), "strict": True}


TOOLS: list[Any] = [tool(Weather, "weather"), tool(Weather, "forecast")]
NAMED: Any = {"type": "function", "name": "weather"}
ONE_CALL: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,  # a random model might never stop calling
    "temperature": 1.0,
}


@pytest.fixture(params=["hermes", "mistral", "llama3"])
def client(request: pytest.FixtureRequest, tool_servers) -> Iterator[openai.OpenAI]:
    url = f"{tool_servers(request.param).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_required_calls_are_valid_and_streams_say_the_same(client):
    for seed in range(3):
        asked: dict[str, Any] = {"input": "Weather?", "extra_body": {"seed": seed}, **ONE_CALL, **SETTINGS}
        whole = client.responses.create(**asked)
        assert whole.status == "completed"
        assert (whole.tool_choice, whole.tools[0].strict, whole.output_text) == ("required", True, "")
        [call] = whole.output
        assert call.type == "function_call"
        assert call.name in ("weather", "forecast")
        Weather.model_validate_json(call.arguments)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            [streamed] = stream.get_final_response().output
        assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
        deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
        assert len(deltas) > 1
        assert "".join(event.delta for event in deltas) == call.arguments
        kinds = [event.type for event in events]
        order = [
            kinds.index(f"response.{kind}")
            for kind in (
                "created",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            )
        ]
        assert order == sorted(order)


def test_parse(client):
    parameters: Any = openai.pydantic_function_tool(Weather)["function"]
    tools: Any = [{"type": "function", **parameters}]
    choice: Any = {"type": "function", "name": "Weather"}
    answer = client.responses.parse(
        input="Weather?", tools=tools, tool_choice=choice, temperature=0, **SETTINGS
    )
    [call] = answer.output
    assert isinstance(call.parsed_arguments, Weather | dict)
    assert Weather.model_validate_json(call.arguments).days in range(1, 10)


@pytest.mark.parametrize("stored", [True, False])
def test_there_and_back(client, stored):
    """A call, what the function gave for it, and an answer in words; by the store, and by hand."""
    first = client.responses.create(input="Weather?", store=stored, **ONE_CALL, **SETTINGS)
    [call] = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"is": "sunny"})}
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none", "temperature": 0, **SETTINGS}
    by_hand: Any = [{"role": "user", "content": "Weather?"}, *first.output, output]
    second = client.responses.create(input=by_hand, **asked)
    assert [item.type for item in second.output] == ["message"]
    fewer = client.responses.create(input=by_hand[:-1], **asked)
    assert second.usage.input_tokens > fewer.usage.input_tokens + len(output["output"])
    if stored:
        going_on = client.responses.create(input=[output], previous_response_id=first.id, **asked)
        assert going_on.output_text == second.output_text


def test_chat_says_the_same(client):
    """The tools of both endpoints are one thing."""
    functions = [{key: value for key, value in one.items() if key != "type"} for one in TOOLS]
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[{"type": "function", "function": function} for function in functions],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        temperature=0,
        model="tiny",
    )
    response = client.responses.create(
        input="Weather?", tools=TOOLS, tool_choice=NAMED, temperature=0, **SETTINGS
    )
    [call] = chat.choices[0].message.tool_calls
    assert response.output[0].arguments == call.function.arguments


def test_a_call_that_is_cut_says_so(client):
    answer = client.responses.create(
        input="Weather?", tools=TOOLS, tool_choice=NAMED, model="tiny", max_output_tokens=50, temperature=0
    )
    assert (answer.status, answer.output[-1].status) == ("incomplete", "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "two of one name": ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name"),
    "none of them": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}},
        "tool_choice.name",
    ),
    "built in": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_refused(client, kind):
    tools, field = BAD[kind]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="Weather?", **tools, **SETTINGS)
    assert caught.value.param == field
