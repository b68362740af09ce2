"""Streams: the order of chunks, usage, errors and the end."""

from __future__ import annotations

import json

import pytest

from resispec.engine.outputs import FinishReason
from resispec.engine.request import RequestError
from resispec.server.writers.chat import ChatWriter

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def stream(http, path="/v1/chat/completions", **body):
    """The events of a stream, decoded, the closing [DONE] checked and left out."""
    body = body if "prompt" in body else CHAT | body
    response = await http.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_chat_chunks(http):
    chunks = await stream(http)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    # An output without text yet makes no chunk.
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "He"}, {"content": "llo"}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert chunks[-1]["choices"][0]["stop_reason"] == 256
    assert all(chunk["usage"] is None and "metrics" not in chunk for chunk in chunks)


async def test_completion_chunks_with_echo(http):
    chunks = await stream(http, "/v1/completions", prompt="ab", echo=True)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abHe", "llo"]


async def test_prompt_logprobs_ride_the_first_chunk(http, engine, piece):
    engine.script = lambda _: (piece("", (1,)), piece("a", (2,), FinishReason.STOP))
    chunks = await stream(http, "/v1/completions", prompt="ab", prompt_logprobs=1)
    scores = [chunk["choices"][0].get("prompt_logprobs") for chunk in chunks]
    assert scores[1:] == [None] * (len(chunks) - 1)
    entry = {"logprob": -0.5, "rank": 2, "decoded_token": "b"}
    likelier = {"logprob": -0.25, "rank": 1, "decoded_token": "g"}
    assert [list(one.values()) for one in scores[0][1:]] == [[likelier, entry]]
    assert scores[0][0] is None


async def test_usage_and_metrics_ride_the_last_chunk(http):
    chunks = await stream(http, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["metrics"]["speculative_decoding"]["num_spec_steps"] == 2


async def test_continuous_usage(http):
    chunks = await stream(http, stream_options={"continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [2, 2, 5]
    assert chunks[0]["usage"]["prompt_tokens"] == len("u:hi;>")


async def test_token_ids(http):
    chunks = await stream(http, return_token_ids=True)
    assert len(chunks[0]["prompt_token_ids"]) == len("u:hi;>")
    ids = [chunk["choices"][0].get("token_ids") for chunk in chunks]
    assert ids == [None, [72, 101], [108], [108, 111]]


async def test_several_choices(http):
    chunks = await stream(http, n=2)
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello"
        assert [choice["finish_reason"] for choice in own].count("stop") == 1


async def test_a_finish_without_text(http, engine, piece):
    engine.script = lambda _: (piece("a", (1,)), piece("", (256,), FinishReason.STOP))
    chunks = await stream(http)
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


async def test_an_error_in_the_middle(http, engine, piece):
    engine.script = lambda _: (
        piece("a", (1,)),
        piece("", (), FinishReason.ERROR, error="the step failed"),
    )
    chunks = await stream(http)
    assert chunks[1]["choices"][0]["delta"]["content"] == "a"
    assert chunks[-1]["error"]["message"] == "the step failed"
    assert chunks[-1]["error"]["type"] == "server_error"


async def test_one_failed_choice_ends_the_others(http, engine, piece):
    failing = (piece("", (), FinishReason.ERROR, error="no"),)
    lasting = (piece("a", (1,), delay=30.0),)
    engine.script = lambda request: failing if request.request_id.endswith("-0") else lasting
    chunks = await stream(http, n=2)
    assert [chunk for chunk in chunks if "error" in chunk] == chunks
    assert engine.aborted == [engine.requests[1].request_id]


async def test_a_refusal_by_the_engine(http, engine):
    engine.refuse = RequestError("no room", "messages")
    chunks = await stream(http)
    assert chunks[0]["error"]["param"] == "messages"


async def test_a_crash_in_a_stream(http, monkeypatch, caplog):
    def crash(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ChatWriter, "chunks", crash)
    chunks = await stream(http)
    assert chunks[0]["error"]["code"] == "internal_error"
    assert "secret" not in json.dumps(chunks)
    assert "ZeroDivisionError" in caplog.text


async def test_errors_without_a_stream_have_their_status(http, engine, piece):
    engine.script = lambda _: (piece("", (), FinishReason.ERROR, error="the step failed"),)
    response = await http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the step failed"


async def test_keep_alive_comments(with_settings, engine, piece):
    engine.script = lambda _: (piece("a", (1,), FinishReason.STOP, delay=0.5),)
    async with with_settings(sse_keep_alive=0.1) as http:
        response = await http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.text.startswith(": ping")


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
async def test_finish_reasons(http, engine, piece, reason):
    engine.script = lambda _: (piece("a", (1,), reason),)
    chunks = await stream(http)
    assert chunks[-1]["choices"][0]["finish_reason"] == reason.value


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_chunks_of_a_number_of_tokens(http, path):
    fields = {"prompt": "ab"} if path == "/v1/completions" else {}
    options = {"include_usage": True, "continuous_usage_stats": True}
    for interval, counts in ((1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])):
        chunks = await stream(http, path, stream_interval=interval, stream_options=options, **fields)
        told = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
        assert list(dict.fromkeys(told)) == counts
        text = [
            choice.get("text", choice.get("delta", {}).get("content", ""))
            for chunk in chunks
            for choice in chunk["choices"]
        ]
        assert "".join(text) == "Hello"
        assert chunks[-1]["usage"]["completion_tokens"] == 5
