"""Tools in responses: what the template and the engine get, the items and events that come back, refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from resispec.engine.outputs import FinishReason

CREATE = "/v1/responses"
PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["x"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 3}}\n</tool_call>'


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": PARAMETERS, **fields}


async def created(http: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await http.post(CREATE, json={"input": "hi", "tools": [tool()], **body})


async def answered(http: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    response = await created(http, **body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_texts_and_calls_are_items(tools_http, engine, script, tokenizer):
    engine.script = script("Well. ", CALL, "\n", CALL.replace("3", "4"), " So.")
    body = await answered(tools_http, parallel_tool_calls=True)
    first, call, other, last = body["output"]
    assert [item["status"] for item in body["output"]] == ["completed"] * 4
    assert (first["type"], first["content"][0]["text"]) == ("message", "Well.")
    assert (last["type"], last["content"][0]["text"].strip()) == ("message", "So.")
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"x": 3}')
    assert other["arguments"] == '{"x": 4}'
    assert call["call_id"].startswith("call_")
    assert call["id"].startswith("fc_")
    assert len({item["id"] for item in body["output"]}) == 4
    assert call["call_id"] != other["call_id"]
    expected = tool(description=None, strict=False)
    assert (body["tools"], body["tool_choice"], body["parallel_tool_calls"]) == ([expected], "auto", True)
    assert tokenizer.decode(engine.requests[0].prompt_token_ids).startswith("f!")
    assert engine.requests[0].sampling.structured is None
    assert not engine.requests[0].sampling.skip_special_tokens


async def test_a_stream(tools_http, engine, script, events):
    engine.script = script(
        "Well. <tool", '_call>\n{"name": "f", "argu', 'ments": {"x"', ": 3}}\n</tool_call>"
    )
    found = events((await created(tools_http, stream=True)).text)
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "output_item.added"),
        *["function_call_arguments.delta"] * 2,
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    assert [event["output_index"] for event in found[2:-1]] == [0] * 6 + [1] * 5
    begun, done = found[8]["item"], found[-2]["item"]
    assert (begun["arguments"], begun["status"]) == ("", "in_progress")
    assert done == begun | {"arguments": '{"x": 3}', "status": "completed"}
    assert {event["item_id"] for event in found[9:12]} == {done["id"]}
    assert "".join(event["delta"] for event in found[9:11]) == found[11]["arguments"] == '{"x": 3}'
    last = found[-1]["response"]
    assert last["output"] == [found[7]["item"], done]
    assert (await tools_http.get(f"{CREATE}/{last['id']}")).json() == last


@pytest.mark.parametrize(
    ("texts", "status"),
    [(['<tool_call>\n{"name": "f", "arguments": {"x": '], "incomplete"), ([CALL[:-5]], "completed")],
)
async def test_a_cut_call(tools_http, engine, script, texts, status):
    """It is incomplete unless its arguments had ended."""
    engine.script = script(*texts, finish=FinishReason.LENGTH)
    body = await answered(tools_http)
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", status)
    assert body["output"][0]["type"] == "function_call"


async def test_scores_belong_to_texts(tools_http, engine, script, events):
    engine.script = script("ab", CALL, "cd")
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 0}
    body = await answered(tools_http, **asked)
    scores = [item["content"][0]["logprobs"] for item in body["output"] if item["type"] == "message"]
    assert [len(one) for one in scores] == [2, 3]  # the last token ends the answer
    found = events((await created(tools_http, stream=True, **asked)).text)
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert sum(len(event["logprobs"]) for event in deltas) == 5


async def test_outputs_go_back(tools_http, engine, tokenizer):
    said = {"role": "assistant", "content": "Well."}
    calls = [
        {"type": "function_call", "call_id": str(x), "name": "f", "arguments": json.dumps({"x": x})}
        for x in (3, 4)
    ]
    outputs = [
        {"type": "function_call_output", "call_id": "3", "output": "ok"},
        {"type": "function_call_output", "call_id": "4", "output": [{"type": "input_text", "text": "no"}]},
    ]
    await answered(tools_http, input=[{"role": "user", "content": "hi"}, said, *calls, *outputs])
    prompt = tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert prompt.endswith("u:hi;a:Well.f(3)f(4);t:ok;t:no;")


async def test_an_output_for_a_stored_response(tools_http, engine, script, tokenizer):
    engine.script = script(CALL)
    first = await answered(tools_http)
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "ok"}
    await answered(tools_http, input=[output], previous_response_id=first["id"])
    assert tokenizer.decode(engine.requests[1].prompt_token_ids).endswith("u:hi;a:f(3);t:ok;")
    unknown = output | {"call_id": "call_other"}
    response = await created(tools_http, input=[unknown], previous_response_id=first["id"])
    assert response.json()["error"]["param"] == "input[0].call_id"


@pytest.mark.parametrize(
    ("body", "part", "choice"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": False}, "start: ", "required"),
        (
            {"tool_choice": {"type": "function", "name": "g"}, "tools": [tool(), tool("g")]},
            'tool_0: "{\\"name\\": \\"g\\"',
            {"type": "function", "name": "g"},
        ),
        ({"tools": [tool(strict=True)]}, "TEXT", "auto"),
    ],
)
async def test_calls_are_held_to_their_schemas(tools_http, engine, body, part, choice):
    assert (await answered(tools_http, **body))["tool_choice"] == choice
    spec = engine.requests[0].sampling.structured
    assert spec.kind == "grammar"
    assert part in spec.value
    assert "tool_1" not in spec.value


BAD = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"tools": [{}]}, "tools[0].type", "required"),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "required"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "required"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [tool("")]}, "tools[0].name", "pattern"),
        ({"tools": [tool("x" * 65)]}, "tools[0].name", "pattern"),
        ({"tools": [tool(), tool()]}, "tools[1].name", "two tools"),
        ({"tools": [tool(mood=1)]}, "tools[0].mood", "unknown"),
        ({"tools": [tool(parameters=[])]}, "tools[0].parameters", "dictionary"),
        ({"tools": [tool(parameters=BAD, strict=True)]}, "tools[0].parameters", "properties.a"),
        (
            {"tools": [tool("a"), tool(parameters=BAD)], "tool_choice": "required"},
            "tools[1].parameters",
            "uniqueItems",
        ),
        ({"tools": "f"}, "tools", "list"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "'g'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "required"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "'file_search'"),
        ({"tool_choice": "any"}, "tool_choice", "'required'"),
        ({"tool_choice": 5}, "tool_choice", "dictionary"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "tools"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "boolean"),
        ({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "text", "tool_choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "not together with tools"),
        ({"tool_choice": "required", "min_tokens": 2}, "min_tokens", "tools"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": ""}]},
            "input[0].call_id",
            "required",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
            "input[0].call_id",
            "no call",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]}]},
            "input[0].output",
            "'input_file'",
        ),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0]", "function_call_output"),
        ({"input": [{"type": ["message"], "role": "user", "content": "a"}]}, "input[0]", "message"),
        ({"input": ["a"]}, "input[0]", "dictionary"),
    ],
)
async def test_refused(tools_http, engine, body, param, part):
    response = await created(tools_http, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert part in error["message"]
    assert not engine.requests


async def test_a_template_without_tools(http, engine):
    response = await created(http)
    assert response.status_code == 400
    assert "no place for tools" in response.json()["error"]["message"]
    assert (await answered(http, tool_choice="none"))["tool_choice"] == "none"
    assert engine.requests[0].sampling.structured is None
