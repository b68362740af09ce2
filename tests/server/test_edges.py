"""Around a request: its deadline, origins of browsers, the load, and the tokenizer's routes."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from resispec.engine.config import ConfigError
from resispec.engine.outputs import FinishReason, StepStats
from resispec.server.loading import load_settings

BODY = {"prompt": "ab"}


@pytest.fixture
def slow(engine, piece):
    """An answer that takes half a minute after its first token."""
    engine.script = lambda _: (piece("a", (1,)), piece("b", (2,), FinishReason.STOP, delay=30.0))


async def test_a_deadline_keeps_what_there_is(http, engine, slow, app):
    started = time.monotonic()
    response = await http.post("/v1/completions", json=BODY, headers={"X-Request-Timeout": "0.2"})
    assert time.monotonic() - started < 5
    assert response.status_code == 200
    [choice] = response.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a", "abort")
    assert choice["stop_reason"] == "request_timeout"
    assert response.json()["usage"]["completion_tokens"] == 1
    assert len(engine.aborted) == 1
    assert app.state.resispec.admission.in_flight == 0


@pytest.mark.parametrize("sent", [{}, {"X-Request-Timeout": "1000"}])
async def test_clients_can_only_shorten_the_servers_deadline(with_settings, slow, sent):
    async with with_settings(request_timeout=0.2) as http:
        body = BODY | {"stream": True}
        text = (await asyncio.wait_for(http.post("/v1/completions", json=body, headers=sent), 5)).text
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events[-1] == "[DONE]"
    [choice] = json.loads(events[-2])["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "request_timeout")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", ""])
async def test_a_bad_deadline_is_refused_by_name(http, engine, value):
    response = await http.post("/v1/completions", json=BODY, headers={"X-Request-Timeout": value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "X-Request-Timeout"
    assert error["message"].startswith("X-Request-Timeout: ")
    assert not engine.requests


PREFLIGHT = {"Origin": "https://one.example", "Access-Control-Request-Method": "POST"}


async def test_no_origin_is_let_in_by_default(http):
    response = await http.options("/v1/completions", headers=PREFLIGHT)
    assert response.status_code == 405
    response = await http.post("/v1/completions", json=BODY, headers={"Origin": "https://one.example"})
    assert "access-control-allow-origin" not in response.headers


async def test_origins(with_settings, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    async with with_settings(cors_origin=["https://one.example"], api_key_file=keys) as http:
        response = await http.options(
            "/v1/completions",
            headers=PREFLIGHT | {"Access-Control-Request-Headers": "authorization,content-type"},
        )
        assert response.status_code == 200  # without a key: browsers ask without one
        assert response.headers["access-control-allow-origin"] == "https://one.example"
        assert "authorization" in response.headers["access-control-allow-headers"]
        response = await http.options(
            "/v1/completions", headers=PREFLIGHT | {"Origin": "https://two.example"}
        )
        assert response.status_code == 400
        response = await http.post("/v1/completions", json=BODY, headers={"Origin": "https://one.example"})
        assert response.status_code == 401
        # A page must be able to read why it was refused.
        assert response.headers["access-control-allow-origin"] == "https://one.example"
        assert "X-Request-Id" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://", "a b://c"])
def test_what_is_no_origin(origin):
    with pytest.raises(ConfigError, match="cors_origin"):
        load_settings({"cors_origin": [origin]})


async def test_load(http, engine, slow):
    idle = (await http.get("/load")).json()
    assert idle == {
        "server_load": 0,
        "capacity": 4,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_ratio": 0.0,
    }
    task = asyncio.create_task(http.post("/v1/completions", json=BODY | {"n": 3}))
    await asyncio.sleep(0.05)
    for listener in engine.listeners:
        listener(StepStats(num_running=2, num_waiting=1, kv_usage_target=0.5))
    busy = (await http.get("/load")).json()
    assert (busy["server_load"], busy["num_requests_running"], busy["num_requests_waiting"]) == (3, 2, 1)
    assert busy["kv_cache_usage_ratio"] == 0.5
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await http.get("/load")).json() == idle


async def test_tokenize_a_text_and_back(http):
    answer = (await http.post("/tokenize", json={"model": "tiny", "prompt": "hé"})).json()
    assert answer == {"count": 3, "max_model_len": 64, "tokens": answer["tokens"], "token_strs": None}
    back = await http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "hé"}
    named = (await http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True})).json()
    assert named["token_strs"] == ["h", "Ã", "©"]
    assert (await http.post("/tokenize", json={"prompt": ""})).json()["count"] == 0
    assert (await http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
    assert (await http.post("/detokenize", json={"tokens": [256]})).json() == {"prompt": "<eos>"}


async def test_tokenize_a_conversation_as_chat_does(http, engine):
    messages = [{"role": "user", "content": "hi"}]
    tokens = (await http.post("/tokenize", json={"messages": messages})).json()["tokens"]
    await http.post("/v1/chat/completions", json={"messages": messages})
    assert tuple(tokens) == engine.requests[0].prompt_token_ids
    text = (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    assert text == "u:hi;>"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"prompt": 1}, "prompt"),
        ("tokenize", {"prompt": "\ud800"}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        (
            "tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("tokenize", {"prompt": "a", "nonsense": 1}, "nonsense"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [258]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens"),
        ("detokenize", {"tokens": ["a"] * 1000}, "tokens"),
    ],
)
async def test_bad_bodies_name_the_field(http, path, body, field):
    response = await http.post(
        f"/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].split("[")[0] == field


async def test_tokenize_knows_its_model(http):
    for path, body in (("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [1]})):
        assert (await http.post(f"/{path}", json=body | {"model": "other"})).status_code == 404
