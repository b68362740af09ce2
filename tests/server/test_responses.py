"""``/v1/responses``: answers, events, the store, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import ByteSize, SecretStr

from resispec.engine.outputs import FinishReason
from resispec.engine.request import RequestError
from resispec.server.responses.writer import ResponseWriter

BODY = {"model": "tiny", "input": "hi"}
CREATE = "/v1/responses"


@pytest.fixture
def slow(engine, piece):
    """An answer that takes half a minute after its first token."""
    engine.script = lambda _: (piece("a", (1,)), piece("b", (2,), FinishReason.STOP, delay=30.0))


async def created(http, **changes: Any) -> dict[str, Any]:
    response = await http.post(CREATE, json=BODY | changes)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def refused(http, **changes: Any) -> dict[str, Any]:
    response = await http.post(CREATE, json=BODY | changes)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def text_of_last_prompt(http, engine) -> str:
    tokens = list(engine.requests[-1].prompt_token_ids)
    return str((await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"])


async def test_an_answer(http, engine):
    body = await created(http, instructions="be brief", temperature=0.5, metadata={"a": "b"})
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert body["completed_at"] >= body["created_at"]
    [item] = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (17, 5)
    assert body["usage"]["output_tokens_details"]["accepted_prediction_tokens"] == 3
    assert body["metrics"]["speculative_decoding"]["exact"]
    assert (body["temperature"], body["top_p"]) == (0.5, 1.0)
    assert (body["instructions"], body["metadata"]) == ("be brief", {"a": "b"})
    assert await text_of_last_prompt(http, engine) == "s:be brief;u:hi;>"
    assert engine.requests[0].sampling.max_tokens == 64 - 17


async def test_items(http, engine):
    await created(
        http,
        input=[
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "y", "annotations": []}],
            },
            {"role": "user", "content": "z"},
        ],
    )
    assert await text_of_last_prompt(http, engine) == "s:d;u:x;a:y;u:z;>"


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        (FinishReason.LENGTH, "incomplete", "max_output_tokens"),
        (FinishReason.ABORT, "incomplete", "server_shutdown"),
    ],
)
async def test_incomplete_answers(http, engine, piece, finish, status, reason, events):
    engine.script = lambda _: (piece("He", (72, 101), finish),)
    body = await created(http, max_output_tokens=2)
    assert (body["status"], body["incomplete_details"]) == (status, {"reason": reason})
    assert body["output"][0]["status"] == "incomplete"
    assert body["max_output_tokens"] == engine.requests[0].sampling.max_tokens == 2
    final = events((await http.post(CREATE, json=BODY | {"stream": True})).text)[-1]
    assert final["type"] == "response.incomplete"


async def test_a_deadline(http, slow):
    response = await http.post(CREATE, json=BODY, headers={"X-Request-Timeout": "0.1"})
    body = response.json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "request_timeout"})
    assert body["output"][0]["content"][0]["text"] == "a"


async def test_a_stream(http, events):
    response = await http.post(CREATE, json=BODY | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events(response.text)
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["delta"] for event in found[4:6]] == ["He", "llo"]
    assert found[6]["text"] == "Hello"
    first, last = found[0]["response"], found[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert (last["status"], last["usage"]["output_tokens"]) == ("completed", 5)
    assert first["id"] == last["id"]
    assert {event["item_id"] for event in found[3:8]} == {last["output"][0]["id"]}
    assert (await http.get(f"{CREATE}/{last['id']}")).json() == last


@pytest.mark.parametrize("kind", ["engine", "refusal"])
async def test_failures(http, engine, piece, kind, events):
    if kind == "engine":
        engine.script = lambda _: (piece("a", (1,)), piece("", (), FinishReason.ERROR, error="broken"))
    else:
        engine.refuse = RequestError("no room for it", "prompt")
    response = await http.post(CREATE, json=BODY)
    assert response.status_code == (500 if kind == "engine" else 400)
    final = events((await http.post(CREATE, json=BODY | {"stream": True})).text)[-1]
    assert final["type"] == "response.failed"
    expected = ("server_error", "broken") if kind == "engine" else ("invalid_prompt", "no room for it")
    assert (final["response"]["error"]["code"], final["response"]["error"]["message"]) == expected
    assert (await http.get(f"{CREATE}/{final['response']['id']}")).json()["status"] == "failed"


async def test_a_crash_in_a_stream_tells_nothing(http, monkeypatch, caplog, events):
    def crash(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ResponseWriter, "feed", crash)
    final = events((await http.post(CREATE, json=BODY | {"stream": True})).text)[-1]
    assert final["type"] == "response.failed"
    assert "secret" not in json.dumps(final)
    assert "ZeroDivisionError" in caplog.text


async def test_a_conversation_goes_on(http, engine):
    first = await created(http, instructions="be brief")
    second = await created(http, input="more", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert (
        await text_of_last_prompt(http, engine) == "u:hi;a:Hello;u:more;>"
    )  # instructions do not carry over
    third = await created(http, input="again", previous_response_id=second["id"], instructions="new")
    assert await text_of_last_prompt(http, engine) == "s:new;u:hi;a:Hello;u:more;a:Hello;u:again;>"
    assert third["status"] == "completed"


async def test_retrieve_and_delete(http):
    body = await created(http)
    path = f"{CREATE}/{body['id']}"
    assert (await http.get(path)).json() == body
    assert (await http.get(path, params={"stream": True})).json()["error"]["param"] == "stream"
    assert (await http.delete(path)).json() == {"id": body["id"], "object": "response", "deleted": True}
    for response in (await http.get(path), await http.delete(path), await http.post(f"{path}/cancel")):
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
    assert (await refused(http, previous_response_id=body["id"]))["param"] == "previous_response_id"


async def test_what_is_not_stored(http, with_settings):
    body = await created(http, store=False)
    assert body["store"] is False
    assert (await http.get(f"{CREATE}/{body['id']}")).status_code == 404
    async with with_settings(response_store_bytes=ByteSize(0)) as off:
        assert (await created(off))["store"] is False
        assert (await refused(off, store=True))["param"] == "store"


async def test_the_oldest_go_when_there_are_too_many(with_settings):
    async with with_settings(response_store_bytes=ByteSize(5000)) as http:
        ids = [(await created(http))["id"] for _ in range(8)]
        there = [(await http.get(f"{CREATE}/{one}")).status_code == 200 for one in ids]
    assert there == sorted(there)
    assert there[-1]
    assert not there[0]


async def test_keys_see_their_own_only(with_settings):
    keys = [SecretStr("one"), SecretStr("two")]
    async with with_settings(api_key=keys) as http:
        mine, other = ({"Authorization": f"Bearer {key.get_secret_value()}"} for key in keys)
        body = (await http.post(CREATE, json=BODY, headers=mine)).json()
        path = f"{CREATE}/{body['id']}"
        assert (await http.get(path, headers=other)).status_code == 404
        assert (await http.delete(path, headers=other)).status_code == 404
        going_on = BODY | {"previous_response_id": body["id"]}
        assert (await http.post(CREATE, json=going_on, headers=other)).status_code == 400
        assert (await http.get(path, headers=mine)).status_code == 200


async def first_event(lines) -> dict[str, Any]:
    async for line in lines:
        if line.startswith("data: "):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return event
    raise AssertionError("the stream ended")


async def test_cancel(running, engine, slow, app):
    http = running.http
    async with http.stream("POST", CREATE, json=BODY | {"stream": True}) as stream:
        lines = stream.aiter_lines()
        response_id = (await first_event(lines))["response"]["id"]
        path = f"{CREATE}/{response_id}"
        async for line in lines:
            if '"response.output_text.delta"' in line:
                break
        assert (await http.get(path)).json()["status"] == "in_progress"
        error = (await refused(http, previous_response_id=response_id))["message"]
        assert "in_progress" in error
        cancelled = (await http.post(f"{path}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert cancelled["output"][0]["content"][0]["text"] == "a"
        rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")]
    assert rest[-1]["type"] == "response.incomplete"
    assert rest[-1]["response"]["status"] == "cancelled"
    assert rest[-1]["response"]["usage"]["output_tokens"] == 1
    again = await http.post(f"{path}/cancel")
    assert again.status_code == 400
    assert "it is cancelled" in again.json()["error"]["message"]
    assert (await http.get(path)).json()["status"] == "cancelled"
    assert app.state.resispec.admission.in_flight == 0
    assert len(engine.aborted) == 1


async def test_a_disconnect_cancels(running, engine, slow, app):
    async with running.http.stream("POST", CREATE, json=BODY | {"stream": True}) as stream:
        response_id = (await first_event(stream.aiter_lines()))["response"]["id"]
    for _ in range(500):
        if engine.aborted:
            break
        await asyncio.sleep(0.01)
    assert (await running.http.get(f"{CREATE}/{response_id}")).json()["status"] == "cancelled"
    assert len(engine.aborted) == 1
    assert app.state.resispec.admission.in_flight == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", None),
        ("input", []),
        ("input", 5),
        ("input", [{"role": "user", "content": [{"type": "input_image"}]}]),
        ("input", [{"type": "function_call_output", "role": "user", "content": "x"}]),
        ("input", [{"role": "tool", "content": "x"}]),
        ("input", "x" * 100),
        ("input", "refuse"),
        ("input", "\ud800"),
        ("instructions", 5),
        ("max_output_tokens", 0),
        ("max_output_tokens", 1000),
        ("max_tokens", 5),
        ("n", 2),
        ("background", True),
        ("conversation", "conv_1"),
        ("include", ["reasoning.encrypted_content"]),
        ("prompt_logprobs", 1),
        ("metadata", {"a": 1}),
        ("metadata", {"a": "x" * 513}),
        ("metadata", {"a": "\ud800"}),
        ("metadata", {str(number): "" for number in range(17)}),
        ("previous_response_id", "resp_none"),
        ("prompt", {"id": "p"}),
        ("reasoning", {"effort": "low"}),
        ("request_id", "x"),
        ("stream_options", {"include_usage": True}),
        ("temperature", -1),
        ("text", {"format": {"type": "xml"}}),
        ("text", {"format": {"type": "text", "schema": {}}}),
        ("text", {"format": {"type": "json_schema", "name": "a"}}),
        ("text", {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nothing"}}}),
        ("text", {"format": {"type": "json_object"}, "verbosity": "low"}),
        ("tools", [{"type": "web_search"}]),
        ("tool_choice", "required"),
        ("top_logprobs", 2),
        ("truncation", "auto"),
        ("nonsense", 1),
    ],
)
async def test_the_field_is_named(http, engine, field, value):
    content = json.dumps(BODY | {field: value, "stream": field == "stream_options"})
    response = await http.post(CREATE, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    param = response.json()["error"]["param"]
    assert param.split("[")[0].split(".")[0] == field
    assert not engine.requests


async def test_what_clients_send_without_meaning_it(http):
    await created(
        http,
        background=False,
        include=[],
        parallel_tool_calls=True,
        service_tier="auto",
        text={"format": {"type": "text"}},
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        truncation="disabled",
        user="somebody",
        stream_options=None,
    )


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "name": "thing", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"text": {"format": FORMAT}}, "json_schema"),
        ({"text": {"format": {"type": "json_object"}}}, "json_object"),
        ({"structured_outputs": {"regex": "[a-z]+"}}, "regex"),
    ],
)
async def test_formats(http, engine, asked, kind):
    body = await created(http, **asked)
    spec = engine.requests[0].sampling.structured
    assert spec.kind == kind
    assert body["text"]["format"] == asked.get("text", {"format": {"type": "text"}})["format"]
    if kind == "json_schema":
        assert json.loads(spec.value) == SCHEMA


async def test_one_format_at_a_time(http):
    error = await refused(http, text={"format": FORMAT}, structured_outputs={"json_object": True})
    assert error["param"] == "structured_outputs"
    assert "not together with text" in error["message"]


async def test_an_unknown_model(http):
    assert (await http.post(CREATE, json=BODY | {"model": "other"})).status_code == 404
