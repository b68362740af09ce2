"""``response_format`` and ``structured_outputs``: what reaches the engine, and what is refused before."""

from __future__ import annotations

import json

import httpx
import pytest

from resispec.engine.request import StructuredSpec

SCHEMA = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
GOOD = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "answer", "schema": GOOD, "strict": True, "description": "one"}


async def chat(http: httpx.AsyncClient, **body: object) -> httpx.Response:
    messages = [{"role": "user", "content": "hi"}]
    return await http.post("/v1/chat/completions", json={"messages": messages, **body})


@pytest.mark.parametrize(
    ("body", "spec"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredSpec("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            StructuredSpec("json_schema", json.dumps(GOOD)),
        ),
        ({"structured_outputs": {"json": GOOD}}, StructuredSpec("json_schema", json.dumps(GOOD))),
        ({"structured_outputs": {"json": json.dumps(GOOD)}}, StructuredSpec("json_schema", json.dumps(GOOD))),
        ({"structured_outputs": {"json_object": True}}, StructuredSpec("json_object")),
        ({"structured_outputs": {"regex": "[ab]+"}}, StructuredSpec("regex", "[ab]+")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, StructuredSpec("choice", '["yes", "no"]')),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, StructuredSpec("grammar", 'root ::= "a"')),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            StructuredSpec("regex", "a"),
        ),
    ],
)
async def test_both_endpoints(http, engine, body, spec):
    assert (await chat(http, **body)).status_code == 200
    assert (await http.post("/v1/completions", json={"prompt": "a", **body})).status_code == 200
    assert [request.sampling.structured for request in engine.requests] == [spec, spec]


def schema_format(schema: object, **fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "text", "json_schema": NAMED}}, "response_format", "json_schema"),
        ({"response_format": schema_format(5)}, "response_format.json_schema.schema", "dictionary"),
        ({"response_format": schema_format(GOOD, mood=1)}, "response_format.json_schema.mood", "unknown"),
        ({"response_format": schema_format(GOOD) | {"x": 1}}, "response_format.x", "unknown"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": GOOD}}},
            "response_format.json_schema.name",
            "required",
        ),
        ({"response_format": schema_format(SCHEMA)}, "response_format.json_schema.schema", "properties.tags"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", "uniqueItems"),
        ({"structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs.json", "itself"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "JSON"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs.regex", "unicode"),
        ({"structured_outputs": {"regex": "a{1000000}"}}, "structured_outputs.regex", "forces"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "x"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "response_format",
        ),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 2}, "min_tokens", "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "response_format"),
        ({"structured_outputs": {"regex": "a"}, "bad_words": ["b"]}, "bad_words", "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, "allowed_token_ids", "structured"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refused_before_anything_runs(http, engine, body, param, part, stream):
    """Streamed or not, it is a 400 and not an event in a stream."""
    content = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": stream, **body})
    headers = {"Content-Type": "application/json"}
    response = await http.post("/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert part in error["message"]
    assert not engine.requests
