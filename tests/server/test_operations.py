"""Keys, queue, disconnects, drain, engine death, logs and the operators' routes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import time
from dataclasses import replace

import pytest
from pydantic import SecretStr

from resispec.engine.outputs import FinishReason, StepStats
from resispec.models.compiled.state import CompileState, CompileStatus
from resispec.server.logging import JsonFormatter

BODY = {"prompt": "ab"}


async def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture
def slow(engine, piece):
    """An answer that takes half a minute after its first token."""
    engine.script = lambda _: (piece("a", (1,)), piece("b", (2,), FinishReason.STOP, delay=30.0))


async def test_operators_routes(http, engine):
    assert (await http.get("/health")).json() == {"status": "ready"}
    assert (await http.get("/ready")).status_code == 200
    assert (await http.get("/version")).json()["version"]
    engine.healthy = False
    assert (await http.get("/health")).status_code == 503
    assert (await http.get("/ready")).json() == {"status": "failed"}


async def test_models(with_settings):
    async with with_settings(served_model_name=["a/b", "alias"]) as http:
        body = (await http.get("/v1/models")).json()
        assert [model["id"] for model in body["data"]] == ["a/b", "alias"]
        assert body["data"][0]["max_model_len"] == 64
        assert (body["data"][0]["dtype"], body["data"][0]["quantization"]) == ("float32", "none")
        assert body["data"][0]["draft_quantization"] == "int8"
        assert (await http.get("/v1/models/a/b")).json()["id"] == "a/b"
        assert (await http.get("/v1/models/tiny")).status_code == 404
        answer = await http.post("/v1/completions", json=BODY | {"model": "alias"})
        assert answer.json()["model"] == "alias"


async def test_compilation_is_told(http, engine, caplog):
    """In the list of models, in the metrics and in one line of the log; the fingerprint changes with it."""

    async def seen():
        (model,) = (await http.get("/v1/models")).json()["data"]
        (line,) = re.findall(r"resispec_build_info{.*}", (await http.get("/metrics")).text)
        fingerprint = (await http.post("/v1/completions", json=BODY)).json()["system_fingerprint"]
        return model["compilation"], line, fingerprint

    status, line, before = await seen()
    assert status == {"state": "off", "note": ""}
    assert 'compilation="off"' in line
    assert 'quantization="none"' in line
    assert (await http.get("/v1/models")).json()["data"][0]["dtype"] == "float32"

    on = CompileStatus(CompileState.ON, "Compiled in 34 s.")
    engine.info = replace(engine.info, compilation=on)
    with caplog.at_level("INFO", "resispec"):
        for listener in engine.listeners:
            listener(StepStats(compilation=on))
            listener(StepStats())
    status, line, after = await seen()
    assert status == {"state": "on", "note": "Compiled in 34 s."}
    assert 'compilation="on"' in line
    assert before != after
    assert [record.message for record in caplog.records].count("Compiled in 34 s.") == 1


async def test_keys(with_settings):
    async with with_settings(api_key=[SecretStr("one"), SecretStr("two")]) as http:
        for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
            response = await http.post("/v1/completions", content=b"{", headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert "x-request-id" in response.headers
        for key in ("one", "two"):
            response = await http.post(
                "/v1/completions", json=BODY, headers={"Authorization": f"Bearer {key}"}
            )
            assert response.status_code == 200
        assert (await http.get("/v1/models")).status_code == 401
        for path in ("/health", "/ready", "/metrics", "/version"):
            assert (await http.get(path)).status_code == 200


async def test_full_queue(http, engine, slow, app):
    # Two run and two may wait.
    tasks = [asyncio.create_task(http.post("/v1/completions", json=BODY)) for _ in range(4)]
    await until(lambda: len(engine.requests) == 4)
    response = await http.post("/v1/completions", json=BODY)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "server_busy"
    exposition = (await http.get("/metrics")).text
    assert 'resispec_admission_rejections_total{model="tiny",reason="queue_full"} 1.0' in exposition
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: app.state.resispec.admission.in_flight == 0)
    assert len(engine.aborted) == 4


async def test_more_sequences_than_ever_fit(http):
    response = await http.post("/v1/completions", json=BODY | {"n": 5})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    response = await http.post("/v1/completions", json={"prompt": ["a"] * 5})
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_disconnect_aborts(running, engine, slow, app, streamed):
    task = asyncio.create_task(running.http.post("/v1/completions", json=BODY | {"stream": streamed, "n": 2}))
    await until(lambda: len(engine.requests) == 2)
    await asyncio.sleep(0.1)
    task.cancel()
    await until(lambda: len(engine.aborted) == 2)
    await until(lambda: app.state.resispec.admission.in_flight == 0)


async def test_a_client_that_does_not_read_loses_its_stream(running, engine, piece, app, monkeypatch):
    monkeypatch.setattr("resispec.server.answers.STALL_SECONDS", 0.3)
    large = [piece("x" * 1_000_000, (1,))] * 100
    engine.script = lambda _: (*large, piece("", (2,), FinishReason.STOP, delay=30.0))
    _, writer = await asyncio.open_connection(running.http.base_url.host, running.http.base_url.port)
    body = json.dumps(BODY | {"stream": True})
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await until(lambda: engine.requests)
    await until(lambda: app.state.resispec.admission.in_flight == 0)
    assert len(engine.aborted) == 1
    writer.close()
    await writer.wait_closed()


async def test_places_are_free_after_every_kind_of_end(http, engine, piece, app):
    for streamed in (False, True):
        for script in (
            (piece("a", (1,), FinishReason.STOP),),
            (piece("", (), FinishReason.ERROR, error="x"),),
        ):
            engine.script = lambda _, script=script: script
            await http.post("/v1/completions", json=BODY | {"stream": streamed, "n": 2})
            assert app.state.resispec.admission.in_flight == 0


async def test_drain_lets_running_answers_finish(running, engine, piece):
    engine.script = lambda _: (piece("a", (1,)), piece("b", (2,), FinishReason.STOP, delay=1.0))
    whole = asyncio.create_task(running.http.post("/v1/completions", json=BODY))
    streamed = asyncio.create_task(running.http.post("/v1/completions", json=BODY | {"stream": True}))
    await until(lambda: len(engine.requests) == 2)
    running.server.handle_exit(signal.SIGTERM, None)
    await asyncio.sleep(0.3)
    assert (await running.http.get("/ready")).json() == {"status": "draining"}
    assert (await running.http.get("/ready")).status_code == 503
    assert (await running.http.get("/health")).status_code == 200
    refused = await running.http.post("/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "30"
    assert (await whole).json()["choices"][0]["text"] == "ab"
    assert (await streamed).text.endswith("data: [DONE]\n\n")
    await asyncio.wait_for(running.task, 5)


async def test_drain_timeout_aborts_with_a_proper_end(running, engine, slow, app):
    app.state.resispec.lifecycle._drain_timeout = 0.2
    whole = asyncio.create_task(running.http.post("/v1/completions", json=BODY))
    streamed = asyncio.create_task(running.http.post("/v1/completions", json=BODY | {"stream": True}))
    await until(lambda: len(engine.requests) == 2)
    await asyncio.sleep(0.1)
    running.server.handle_exit(signal.SIGTERM, None)
    body = (await whole).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("a", "abort")
    assert body["usage"]["completion_tokens"] == 1
    text = (await streamed).text
    assert '"finish_reason":"abort"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert len(engine.aborted) == 2
    await asyncio.wait_for(running.task, 5)


async def test_the_server_ends_when_the_engine_dies(running, engine):
    engine.healthy = False
    assert (await running.http.get("/health")).status_code == 503
    await asyncio.wait_for(running.task, 5)


async def test_a_request_has_one_log_line_without_its_prompt(http, caplog):
    caplog.set_level(logging.DEBUG, "resispec")
    await http.post("/v1/completions", json={"prompt": "secret words"}, headers={"X-Request-Id": "r1"})
    await http.get("/health")
    records = [record for record in caplog.records if record.message == "request"]
    assert [record.levelname for record in records] == ["INFO", "DEBUG"]
    entry = json.loads(JsonFormatter().format(records[0]))
    assert entry["request_id"] == "r1"
    assert (entry["status"], entry["prompt_tokens"], entry["completion_tokens"]) == (200, 12, 5)
    assert entry["finish_reasons"] == ["stop"]
    assert not any("secret" in JsonFormatter().format(record) for record in caplog.records)


async def test_a_crash_is_a_500_with_its_trace_in_the_log_only(http, engine, monkeypatch, caplog):
    def crash(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(engine, "generate", crash)
    response = await http.post("/v1/completions", json=BODY)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text
    assert response.headers["x-request-id"]


async def test_the_schema_is_published(http):
    schema = (await http.get("/openapi.json")).json()
    for path in ("/v1/completions", "/v1/chat/completions"):
        body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert "temperature" in schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]["properties"]
