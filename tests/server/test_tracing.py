"""Traces, as a collector on a real socket gets them."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from resispec.engine.config import ConfigError
from resispec.engine.outputs import FinishReason
from resispec.server.app import create_app

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """Keeps every span it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def app(engine, tokenizer, settings, collector):
    return create_app(engine, tokenizer, settings.model_copy(update={"otlp_endpoint": collector.endpoint}))


def sent(app, collector: Collector) -> list[Any]:
    app.state.resispec.tracing.close()
    return collector.spans()


def attributes(thing: Any) -> dict[str, Any]:
    values = {item.key: item.value for item in thing.attributes}
    return {
        key: [part.string_value for part in value.array_value.values]
        if value.HasField("array_value")
        else getattr(value, value.WhichOneof("value"))
        for key, value in values.items()
    }


async def test_a_request_and_what_it_did(http, app, collector):
    before = time.time_ns()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    body = {"prompt": "secret", "max_tokens": 5, "temperature": 0.5, "n": 2}
    answer = await http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    spans = sent(app, collector)
    assert sorted(span.name for span in spans) == [
        *("decode", "decode", "prefill", "prefill", "queue", "queue", "text_completion tiny")
    ]
    [root] = [span for span in spans if span.name.startswith("text_completion")]
    assert root.parent_span_id.hex() == PARENT
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert before <= root.start_time_unix_nano < root.end_time_unix_nano <= time.time_ns()
    found = attributes(root)
    assert found["gen_ai.response.id"] == "mine"
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.max_tokens"] == 5
    assert found["gen_ai.request.choice.count"] == 2
    assert found["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"] * 2
    assert found["gen_ai.usage.output_tokens"] == 10
    assert found["gen_ai.response.finish_reasons"] == ["stop", "stop"]
    assert "secret" not in str(spans)
    assert "Hello" not in str(spans)
    [resource] = [part.resource for part in collector.requests[0].resource_spans]
    assert attributes(resource)["service.name"] == "resispec"


async def test_phases_lie_one_behind_the_other(http, app, collector):
    await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
    spans = {span.name: span for span in sent(app, collector)}
    assert set(spans) == {"chat tiny", "queue", "prefill", "decode"}
    root = spans["chat tiny"]
    assert all(spans[name].parent_span_id == root.span_id for name in ("queue", "prefill", "decode"))
    milliseconds = {
        name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 for name, span in spans.items()
    }
    # As the engine says.
    assert milliseconds["queue"] == pytest.approx(1, abs=0.01)
    assert milliseconds["prefill"] == pytest.approx(2, abs=0.01)
    assert milliseconds["decode"] == pytest.approx(4, abs=0.01)
    assert spans["queue"].start_time_unix_nano == root.start_time_unix_nano
    assert abs(spans["queue"].end_time_unix_nano - spans["prefill"].start_time_unix_nano) < 1000
    assert [attributes(event)["resispec.tokens"] for event in spans["decode"].events] == [2, 1, 2]
    assert attributes(spans["decode"])["resispec.num_accepted_draft_tokens"] == 3


async def test_failures_and_streams(http, app, engine, piece, collector):
    engine.script = lambda _: (piece("a", (1,)), piece(finish=FinishReason.ERROR, error="broken"))
    await http.post("/v1/completions", json={"prompt": "ab", "stream": True})
    [root] = sent(app, collector)
    assert (root.status.code, root.status.message) == (2, "broken")
    assert attributes(root)["resispec.stream"] is True
    assert attributes(root)["gen_ai.response.finish_reasons"] == ["abort"]


async def test_a_collector_that_is_gone_harms_nobody(engine, tokenizer, settings, caplog):
    changed = settings.model_copy(update={"otlp_endpoint": "http://127.0.0.1:9/v1/traces"})
    app = create_app(engine, tokenizer, changed)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.post("/v1/completions", json={"prompt": "ab"})
    assert answer.status_code == 200
    app.state.resispec.tracing.close()
    assert caplog.records


def test_without_the_package(engine, tokenizer, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    changed = settings.model_copy(update={"otlp_endpoint": "http://127.0.0.1:9/v1/traces"})
    with pytest.raises(ConfigError, match=r"resispec\[otel\]"):
        create_app(engine, tokenizer, changed)
