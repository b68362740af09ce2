"""Tools in chat: what the template and the engine get, what comes back, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

from resispec.engine.grammar.compiler import GrammarCompiler
from resispec.engine.grammar.state import GrammarState
from resispec.engine.request import StructuredSpec
from resispec.server.tools.formats import HERMES, LLAMA3, MISTRAL, ToolFormat
from resispec.server.tools.grammar import calls_in_text, calls_only

USER = {"role": "user", "content": "hi"}
PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["x"],
    "additionalProperties": False,
}


def tool(name: str = "f", parameters: object = PARAMETERS, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **function}}


CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 3}}\n</tool_call>'


async def chat(http: httpx.AsyncClient, *messages: object, **body: object) -> httpx.Response:
    return await http.post(
        "/v1/chat/completions", json={"messages": list(messages) or [USER], "tools": [tool()], **body}
    )


async def test_a_call_is_told_apart(tools_http, engine, script, tokenizer):
    engine.script = script("Well. ", CALL)
    body = (await chat(tools_http)).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "f", "arguments": '{"x": 3}'}
    assert tokenizer.decode(engine.requests[0].prompt_token_ids).startswith("f!")
    assert engine.requests[0].sampling.structured is None
    assert not engine.requests[0].sampling.skip_special_tokens


async def test_a_call_alone_has_no_content(tools_http, engine, script):
    engine.script = script(CALL)
    message = (await chat(tools_http)).json()["choices"][0]["message"]
    assert message["content"] is None


async def test_streamed(tools_http, engine, script):
    engine.script = script(
        "Well. <tool", '_call>\n{"name": "f", "argu', 'ments": {"x"', ": 3}}\n</tool_call>"
    )
    response = await chat(tools_http, stream=True)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Well."
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert {call["index"] for call in calls} == {0}
    assert [call["function"].get("name") for call in calls] == ["f", None]
    assert "".join(call["function"].get("arguments", "") for call in calls) == '{"x": 3}'
    assert "id" not in calls[1]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_answers_of_tools_go_back(tools_http, engine, tokenizer):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 3}'}}
    response = await chat(
        tools_http,
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    )
    assert response.status_code == 200, response.text
    assert tokenizer.decode(engine.requests[0].prompt_token_ids).endswith("u:hi;a:f(3);t:ok;")


@pytest.mark.parametrize(
    ("body", "accepted", "refused"),
    [
        ({"tool_choice": "required"}, [CALL, f"{CALL}\n{CALL}"], ["text", CALL.replace("3", "33")]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [CALL], [f"{CALL}\n{CALL}"]),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [tool(), tool("g")]},
            [CALL.replace('"f"', '"g"')],
            [CALL],
        ),
        (
            {"tools": [tool(strict=True)]},
            ["text", f"text {CALL}", CALL, f"{CALL}{CALL} and"],
            [CALL.replace("3", "33"), '<tool_call>\n{"name": "h'],
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}},
            [CALL, f"{CALL}\n{CALL}", '{"x": 3}'],
            ["text", CALL.replace("3", "33"), '{"x": 33}', '{"y": 3}'],
        ),
        (
            {"structured_outputs": {"choice": ["yes", "no"]}, "parallel_tool_calls": False},
            [CALL, "yes", "no"],
            ["maybe", f"{CALL}\n{CALL}"],
        ),
        ({"response_format": {"type": "json_object"}}, [CALL, '{"y": [1]}'], ["[1]"]),
    ],
)
async def test_calls_are_held_to_their_schemas(tools_http, engine, tokenizer, body, accepted, refused):
    response = await chat(tools_http, **body)
    assert response.status_code == 200, response.text
    spec = engine.requests[0].sampling.structured
    compiled = GrammarCompiler(tokenizer.backend_tokenizer, 258, [256]).compile(spec)
    for text in accepted:
        state = compiled.start()
        assert follows(state, tokenizer.encode(text, add_special_tokens=False)), text
    for text in refused:
        assert not follows(compiled.start(), tokenizer.encode(text, add_special_tokens=False)), text


def follows(state: GrammarState, token_ids: list[int]) -> bool:
    """Whether an answer may be these tokens and the end."""
    for place, token in enumerate((*token_ids, 256), start=1):
        if not state.allowed(())[token // 8] >> (token % 8) & 1:
            return False
        if state.commit([token]) is not None:
            return place >= len(token_ids)
    return True


@pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA3])
@pytest.mark.parametrize("special", [False, True])
def test_grammars_of_every_format(tokenizer, form: ToolFormat, special: bool) -> None:
    """Markers that are special tokens, and markers that are text."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    if special:
        backend.add_special_tokens(
            [AddedToken(mark, special=True) for mark in (form.begin, form.end) if mark]
        )
    size = backend.get_vocab_size(with_added_tokens=True)
    compiler = GrammarCompiler(backend, size, [256])
    compiler.compile(StructuredSpec("grammar", calls_only(form, [("f", PARAMETERS)], backend, several=True)))
    if not form.is_bare:
        compiler.compile(StructuredSpec("grammar", calls_in_text(form, [("f", PARAMETERS)], backend)))


BAD = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"tools": [{}]}, "tools[0].type", "required"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "required"),
        ({"tools": [tool("")]}, "tools[0].function.name", "pattern"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "two tools"),
        ({"tools": [tool(mood=1)]}, "tools[0].function.mood", "unknown"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "dictionary"),
        (
            {"tools": [tool(parameters={"type": "string"})], "tool_choice": "required"},
            "tools[0].function.parameters.type",
            "object",
        ),
        (
            {"tools": [tool(parameters=BAD)], "tool_choice": "required"},
            "tools[0].function.parameters",
            "properties.a",
        ),
        ({"tools": [tool(parameters=BAD, strict=True)]}, "tools[0].function.parameters", "uniqueItems"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
            "'g'",
        ),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "tools"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "tool_choice",
        ),
        ({"tool_choice": "required", "min_tokens": 2}, "min_tokens", "tools"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar", "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "required"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
            "required",
        ),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]}, "messages[0]", "role tool"),
        ({"messages": [{"role": "tool", "tool_call_id": "1"}]}, "messages[0].content", "required"),
    ],
)
async def test_refused(tools_http, engine, body, param, part):
    response = await tools_http.post(
        "/v1/chat/completions", json={"messages": [USER], "tools": [tool()], **body}
    )
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert part in error["message"]
    assert not engine.requests


async def test_a_template_without_tools(http):
    response = await http.post("/v1/chat/completions", json={"messages": [USER], "tools": [tool()]})
    assert response.status_code == 400
    assert "no place for tools" in response.json()["error"]["message"]
    body = {"messages": [USER], "tools": [tool()], "tool_choice": "none"}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
