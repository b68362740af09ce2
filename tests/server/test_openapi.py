"""The OpenAPI document: complete, true about errors and streams, and with examples that work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from resispec.server.openapi import EXAMPLES

GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


@pytest.fixture
async def document(http) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get("/openapi.json")).json()
    return found


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == "$ref")
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from references(item)


def test_references_lead_somewhere(document):
    for reference in set(references(document)):
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_errors_are_described(document):
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], path
            if method == "post" and path == "/v1/audit":  # which knows of no model
                assert {"400", "413"} <= set(operation["responses"])
            elif method == "post" and path != "/v1/responses/{response_id}/cancel":
                assert {"400", "404", "413"} <= set(operation["responses"]), path
    for path in GENERATING:
        described = document["paths"][path]["post"]["responses"]
        assert {"429", "500", "503"} <= set(described)
        for status, response in described.items():
            if status != "200":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}


def test_operations_have_plain_names(document):
    names = [item["operationId"] for operations in document["paths"].values() for item in operations.values()]
    assert len(names) == len(set(names))
    assert {"create_chat_completion", "create_response", "tokenize"} <= set(names)


def test_streams_are_described(document):
    for path in GENERATING:
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        event = content["text/event-stream"]["schema"]
        done = {"const": "[DONE]"} in event["properties"]["data"].get("anyOf", [])
        assert done == (path != "/v1/responses")
        assert content["application/json"]["schema"]["$ref"]


def test_unknown_and_unsupported_fields(document):
    schemas = document["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest", "ResponsesRequest", "TokenizeRequest"):
        assert schemas[name]["additionalProperties"] == {"type": "null"}
    assert schemas["CompletionRequest"]["properties"]["best_of"]["enum"] == [None, 1]


async def test_unknown_fields_may_be_let_in(with_settings):
    async with with_settings(ignore_unknown_fields=True) as http:
        schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["ChatRequest"]["additionalProperties"] is True


async def test_keys_are_described_where_they_are_needed(document, with_settings):
    assert "securitySchemes" not in document["components"]
    async with with_settings(api_key=[SecretStr("k")]) as http:
        headers = {"Authorization": "Bearer k"}
        found = (await http.get("/openapi.json", headers=headers)).json()
    assert found["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    assert found["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "401" in found["paths"]["/v1/models"]["get"]["responses"]
    assert "security" not in found["paths"]["/health"]["get"]


async def test_the_examples_work(http, document):
    paths = {
        "ChatRequest": "/v1/chat/completions",
        "CompletionRequest": "/v1/completions",
        "ResponsesRequest": "/v1/responses",
        "TokenizeRequest": "/tokenize",
        "DetokenizeRequest": "/detokenize",
    }
    assert paths.keys() == EXAMPLES.keys()
    for name, path in paths.items():
        [example] = document["components"]["schemas"][name]["examples"]
        response = await http.post(
            path, json=example | ({"max_tokens": 4} if "max_tokens" in example else {})
        )
        assert response.status_code == 200, response.text


async def test_all_methods_of_a_path_are_allowed(http):
    response = await http.put("/v1/responses/x")
    assert (response.status_code, response.headers["allow"]) == (405, "DELETE, GET")
    assert (await http.get("/tokenize")).headers["allow"] == "POST"


async def test_names_that_cannot_be_encoded_are_refused_all_the_same(http):
    for name, body in (
        ("\ud800", {"\ud800": 1}),
        ("stop", {"stop": {"\ud800": 1}}),
        ("model", {"model": "\ud800"}),
    ):
        response = await http.post(
            "/v1/completions",
            content=json.dumps({"prompt": "a"} | body),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == (404 if name == "model" else 400)
        assert response.json()["error"]["message"]
