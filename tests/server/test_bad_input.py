"""Bad input: a 400 (or the right other status) in OpenAI's shape, with the field's name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from resispec.engine.request import RequestError
from resispec.server.schemas.chat import ChatRequest
from resispec.server.schemas.completions import CompletionRequest


async def refused(http: httpx.AsyncClient, status: int = 400, **body: Any) -> dict[str, Any]:
    response = await http.post("/v1/completions", json={"prompt": "ab", **body})
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", []),
        ("prompt", None),
        ("prompt", 5),
        ("prompt", ["a", 1]),
        ("prompt", [True]),
        ("prompt", [[1], []]),
        ("prompt", [258]),
        ("prompt", [-1]),
        ("prompt", ["a", ""]),
        ("prompt", {"a": 1}),
        ("temperature", -0.1),
        ("temperature", "0.5"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("max_tokens", 10**30),
        ("max_tokens", 63),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("n", 0),
        ("n", 129),
        ("n", 5),
        ("seed", 1 << 63),
        ("stop", ["a"] * 5),
        ("stop", [""]),
        ("stop", 3),
        ("stop_token_ids", [258]),
        ("stop_token_ids", ["a"]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [258]),
        ("allowed_token_ids", ["a"]),
        ("logit_bias", {"258": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": "5"}),
        ("logit_bias", [1]),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("request_id", "a b"),
        ("cache_salt", ""),
        ("speculation", True),
        ("speculation.verifier", None),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", "1"),
        ("max_tokens", -1),
        ("stop", ["x" * 1025]),
        ("stop_token_ids", [1] * 4097),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("truncate_prompt_tokens", True),
        ("stream_interval", 0),
        ("stream_interval", 1),
        ("best_of", 2),
        ("suffix", "x"),
        ("bad_words", "x"),
        ("bad_words", [" "]),
        ("bad_words", [3]),
        ("bad_words", ["x"] * 257),
        ("bad_words", ["x" * 1025]),
        ("prediction", {"type": "content", "content": "x"}),  # of chat only
        ("store", True),
        ("service_tier", "flex"),
        ("nonsense", 1),
    ],
)
async def test_the_field_is_named(http, engine, field, value):
    body: dict[str, Any] = (
        {"speculation": {"verifier": "magic"}} if field == "speculation.verifier" else {field: value}
    )
    error = await refused(http, **body)
    assert error["param"].split("[")[0] == field
    assert error["message"].startswith(error["param"] + ": ")
    assert error["type"] == "invalid_request_error"
    assert not engine.requests


async def test_a_refused_verifier_says_why(http, engine):
    error = await refused(http, speculation={"verifier": "resispec-paper"})
    assert error["param"] == "speculation.verifier"
    assert "is not exact" in error["message"]
    assert not engine.requests


async def test_nested_fields_are_named(http):
    error = await refused(http, speculation={"tree": {"max_nodes": 0}})
    assert error["param"] == "speculation.tree.max_nodes"
    error = await refused(http, speculation={"tree": {"width": 1}})
    assert error["param"] == "speculation.tree.width"
    for proposer in ("suffix", ["draft", "oracle"], 3, [], ["draft", ""], "draft,"):
        error = await refused(http, speculation={"proposer": proposer})
        assert error["param"] == "speculation.proposer", proposer


async def test_modes_of_speculation_are_checked(http, engine):
    error = await refused(http, speculation={"mode": "sometimes"})
    assert error["param"] == "speculation.mode"
    for enabled, mode in ((True, "off"), (False, "auto")):
        error = await refused(http, speculation={"enabled": enabled, "mode": mode})
        assert error["param"] == "speculation.mode"
        assert "contradicts" in error["message"]
    assert not engine.requests


async def test_unknown_fields_can_be_ignored(with_settings):
    async with with_settings(ignore_unknown_fields=True) as http:
        response = await http.post("/v1/completions", json={"prompt": "a", "nonsense": 1})
        assert response.status_code == 200
        # What is known and not honoured is still refused.
        assert (await refused(http, best_of=2))["param"] == "best_of"


async def test_context_errors_say_both_numbers(http):
    error = await refused(http, prompt="x" * 64)
    assert error["param"] == "prompt"
    assert error["code"] == "context_length_exceeded"
    assert error["message"].count("64") == 2
    error = await refused(http, prompt="x" * 60, max_tokens=5)
    assert error["param"] == "max_tokens"
    assert "at most 4 fit" in error["message"]


async def test_default_limit_shrinks_to_the_context(http, engine):
    response = await http.post("/v1/completions", json={"prompt": "x" * 60})
    assert response.status_code == 200
    assert engine.requests[0].sampling.max_tokens == 4


async def test_unknown_model(http):
    error = await refused(http, status=404, model="gpt-9")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "tiny" in error["message"]


@pytest.mark.parametrize(
    ("content", "kind", "part"),
    [
        (b"{", "application/json", "JSON"),
        (b"", "application/json", "JSON"),
        (b"[1]", "application/json", "object"),
        (b'{"prompt": "a"}', "text/plain", "application/json"),
        (b'{"prompt": "a"}', "application/x-www-form-urlencoded", "application/json"),
        (b'{"prompt": "\xff"}', "application/json", ""),
        (b"[" * 5000 + b"]" * 5000, "application/json", ""),
        (b'{"prompt": "a", "seed": ' + b"9" * 6000 + b"}", "application/json", ""),
        (b'{"prompt": "a", "temperature": NaN}', "application/json", "temperature"),
        (b'{"prompt": "a", "temperature": Infinity}', "application/json", "temperature"),
        (b'{"prompt": "\\ud800"}', "application/json", "prompt"),
        (b'{"prompt": "a", "bad_words": ["\\ud800"]}', "application/json", "bad_words"),
        (b'{"prompt": "a" "n": 2}', "application/json", "at character 15"),
    ],
)
async def test_bodies_that_are_no_request(http, content, kind, part):
    response = await http.post("/v1/completions", content=content, headers={"Content-Type": kind})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert part in error["message"]
    assert "Traceback" not in json.dumps(error)


async def test_long_bodies(http):
    response = await http.post("/v1/completions", json={"prompt": "x" * 20_000})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"

    async def chunks():
        for _ in range(20):
            yield b"x" * 1000

    response = await http.post(
        "/v1/completions", content=chunks(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413


async def test_a_refusal_by_the_engine(http, engine):
    engine.refuse = RequestError("no room for it", "prompt")
    error = await refused(http)
    assert (error["message"], error["param"]) == ("no room for it", "prompt")


async def test_speculation_without_a_draft(http, engine):
    from dataclasses import replace

    engine.info = replace(engine.info, draft=None, proposers=())
    assert (await refused(http, speculation={"enabled": True}))["param"] == "speculation"
    response = await http.post("/v1/completions", json={"prompt": "a", "speculation": {"enabled": False}})
    assert response.status_code == 200
    assert not engine.requests[0].speculation.enabled


async def test_unknown_paths_and_methods(http):
    response = await http.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    response = await http.get("/v1/completions")
    assert response.status_code == 405
    assert "error" in response.json()


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (ChatRequest, {"messages": [{"role": "x", "content": 1}] * 1000}),
        (ChatRequest, {"messages": [{"role": "user", "content": ""}] * 4097}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 4097}]}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["a"] * 1000}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(token): 1000 for token in range(1000)}}),
    ],
)
def test_a_body_full_of_faults_costs_no_more_than_one(schema: type[BaseModel], body: dict[str, Any]) -> None:
    """Noting a million of them, which fit into a body, would hold up everybody for seconds."""
    with pytest.raises(ValidationError) as refusal:
        schema.model_validate(body)
    assert refusal.value.error_count() <= 2  # of one message: its role and its content
