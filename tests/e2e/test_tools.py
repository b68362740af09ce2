"""Tools through the unmodified openai SDK, for three families of models: whole, streamed and parsed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Weather?"}]
SETTINGS: dict[str, Any] = {"model": "tiny", "max_tokens": 400}


class Weather(BaseModel):
    """How the weather will be."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)
    note: str = Field(max_length=5)


class Time(BaseModel):
    """What time it is."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]


TOOLS: list[Any] = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Time)]
BY_NAME: dict[str, type[BaseModel]] = {"Weather": Weather, "Time": Time}
NAMED: Any = {"type": "function", "function": {"name": "Weather"}}


@pytest.fixture(params=["hermes", "mistral", "llama3"])
def client(request: pytest.FixtureRequest, tool_servers) -> Iterator[openai.OpenAI]:
    url = f"{tool_servers(request.param).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_required_calls_are_valid_and_streams_say_the_same(client):
    asked: dict[str, Any] = {**SETTINGS, "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"}
    asked["parallel_tool_calls"] = False  # a random model might never stop calling
    for seed in range(3):
        choice = client.chat.completions.create(temperature=1.0, seed=seed, **asked).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        for name, arguments in calls:
            BY_NAME[name].model_validate_json(arguments)
        assert len({call.id for call in choice.message.tool_calls}) == len(calls)
        pieces: dict[int, list[str]] = {}
        finish = []
        for chunk in client.chat.completions.create(temperature=1.0, seed=seed, stream=True, **asked):
            for call in chunk.choices[0].delta.tool_calls or []:
                if call.function.name:
                    assert call.index == len(pieces)
                    pieces[call.index] = [call.function.name, ""]
                pieces[call.index][1] += call.function.arguments or ""
            finish.append(chunk.choices[0].finish_reason)
        assert [tuple(pieces[index]) for index in sorted(pieces)] == calls
        assert finish[-1] == "tool_calls"


def test_parse(client):
    """By the SDK's helpers, as a whole and as events."""
    asked: dict[str, Any] = {**SETTINGS, "messages": MESSAGES, "tools": TOOLS, "tool_choice": NAMED}
    [call] = client.chat.completions.parse(temperature=0, **asked).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(temperature=0, **asked) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    [streamed] = final.choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments
    [done] = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done.parsed_arguments == call.function.parsed_arguments
    assert sum(event.type == "tool_calls.function.arguments.delta" for event in events) > 1


def test_a_conversation_with_tools(client):
    """Calls and what the tools say go back, until the model is to answer in words."""
    messages = list(MESSAGES)
    for turn in range(2):
        answer = client.chat.completions.create(
            messages=messages,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=1.0,
            seed=turn,
            **SETTINGS,
        )
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls:
            arguments = BY_NAME[call.function.name].model_validate_json(call.function.arguments)
            content = json.dumps({"city": arguments.model_dump()["city"], "says": "sunny"})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none", "temperature": 0, **SETTINGS}
    before = client.chat.completions.create(messages=MESSAGES, **asked)
    after = client.chat.completions.create(messages=messages, **asked)
    assert after.choices[0].message.tool_calls is None
    said = sum(len(message["content"]) for message in messages if isinstance(message, dict))
    assert after.usage.prompt_tokens > before.usage.prompt_tokens + said - len(MESSAGES[0]["content"])


def test_speculation_changes_nothing(client):
    def ask(enabled: bool) -> list[str]:
        answer = client.chat.completions.create(
            messages=MESSAGES,
            tools=TOOLS,
            tool_choice=NAMED,
            temperature=0,
            extra_body={"speculation": {"enabled": enabled}},
            **SETTINGS,
        )
        return [call.function.arguments for call in answer.choices[0].message.tool_calls]

    assert ask(True) == ask(False)


def test_a_call_that_is_cut_says_so(client):
    answer = client.chat.completions.create(
        messages=MESSAGES, tools=TOOLS, tool_choice=NAMED, model="tiny", max_tokens=50, temperature=0
    )
    assert answer.choices[0].finish_reason == "length"
