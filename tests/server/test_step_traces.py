"""Step traces over HTTP: asked for, told in streams, kept for a while, and for who asked only."""

from __future__ import annotations

import json

import pytest
from pydantic import ByteSize, SecretStr

from resispec.engine.outputs import FinishReason, RequestOutput, Usage
from resispec.engine.trace import BONUS, HEAD, TAIL, TARGET, StepTrace, TraceCandidate, TraceToken
from resispec.server.step_traces import MAX_REQUESTS, StepTraceStore

TRACED = {"prompt": "ab", "request_id": "r1", "speculation": {"trace": True}}


def candidate(slot: int, token_id: int, **changes: object) -> TraceCandidate:
    fields: dict[str, object] = {
        "slot": slot,
        "parent": 0,
        "depth": 1,
        "child": slot - 1,
        "token_id": token_id,
        "origin": TAIL,
        "p": 1 / 3,
        "q": 0.5,
        "draft": 0.4,
        "accept": 2 / 3,
        "threshold": None,
        "uniform": 0.1,
        "shared": False,
        "reached": True,
        "kept": False,
    }
    return TraceCandidate(**{**fields, **changes})  # type: ignore[arg-type]


FIRST = StepTrace(0, "resispec", (), (TraceToken(72, "H", TARGET, 0.5, 0.5),))
SECOND = StepTrace(
    1,
    "resispec",
    (candidate(1, 101, origin=HEAD, q=None, kept=True), candidate(2, 120)),
    (TraceToken(101, "e", HEAD, 1 / 3, None), TraceToken(108, "l", BONUS, 0.9, 0.9)),
)


def told(step: StepTrace) -> RequestOutput:
    return RequestOutput("", "", (), Usage(0, 0), trace=(step,))


@pytest.fixture
def traced(engine, piece):
    """An answer in two steps, with a trace of each."""
    engine.script = lambda _: (
        piece("H", (72,), trace=(FIRST,)),
        piece("el", (101, 108), FinishReason.LENGTH, trace=(SECOND,)),
    )


async def test_steps_of_an_answer(http, engine, tokenizer, traced):
    answer = (await http.post("/v1/completions", json=TRACED)).json()
    assert engine.requests[0].speculation.trace
    body = (await http.get(f"/v1/requests/{answer['id']}/speculation")).json()
    assert (await http.get("/v1/requests/r1/speculation")).json()["steps"] == body["steps"]
    assert (body["num_steps"], body["first_step"], body["next"]) == (2, 0, None)
    first, second = body["steps"]
    assert first["candidates"] == []
    assert first["tokens"] == [{"token_id": 72, "text": "H", "origin": "target", "p": 0.5, "drawn": 0.5}]
    found = [(one["text"], one["origin"], one["kept"]) for one in second["candidates"]]
    texts = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in (101, 120)]
    assert found == [(texts[0], "head", True), (texts[1], "tail", False)]
    assert second["candidates"][0]["p"] == 0.333333
    assert second["candidates"][0]["q"] is None


async def test_pages(http, engine, piece):
    engine.script = lambda _: (
        *(piece("H", (72,), trace=(FIRST,)) for _ in range(6)),
        piece("", (), FinishReason.LENGTH),
    )
    await http.post("/v1/completions", json=TRACED)
    url = "/v1/requests/r1/speculation"
    page = (await http.get(url, params={"start": 1, "limit": 2})).json()
    assert [step["index"] for step in page["steps"]] == [1, 2]
    assert page["next"] == 3
    assert (await http.get(url, params={"start": 5})).json()["next"] is None
    assert (await http.get(url, params={"start": 99})).json()["steps"] == []
    assert (await http.get(url, params={"choice": 3})).json()["num_steps"] == 0
    for wrong in ({"start": -1}, {"limit": 0}, {"limit": 1000}, {"choice": "x"}):
        assert (await http.get(url, params=wrong)).status_code == 400


async def test_streams_tell_where_tokens_come_from(http, traced):
    for path, body in (
        ("/v1/completions", TRACED),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "speculation": {"trace": True}},
        ),
    ):
        text = (await http.post(path, json=body | {"stream": True})).text
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        steps = [step for chunk in chunks for choice in chunk["choices"] for step in choice.get("trace", ())]
        assert steps == [
            {"step": 0, "tokens": [{"id": 72, "text": "H", "origin": "target"}]},
            {
                "step": 1,
                "tokens": [
                    {"id": 101, "text": "e", "origin": "head"},
                    {"id": 108, "text": "l", "origin": "bonus"},
                ],
            },
        ]


async def test_not_asked_for(http, engine):
    text = (await http.post("/v1/completions", json={"prompt": "ab", "stream": True})).text
    assert "trace" not in text
    assert not engine.requests[0].speculation.trace
    assert (await http.get("/v1/requests/none/speculation")).status_code == 404


async def test_only_for_who_asked(with_settings, traced):
    async with with_settings(api_key=[SecretStr("one"), SecretStr("two")]) as http:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        assert (await http.post("/v1/completions", json=TRACED, headers=one)).status_code == 200
        url = "/v1/requests/cmpl-r1/speculation"
        assert (await http.get(url, headers=one)).status_code == 200
        foreign = await http.get(url, headers=two)
        assert foreign.status_code == 404
        assert foreign.json()["error"]["code"] == "trace_not_found"
        assert (await http.get(url)).status_code == 401
        # An id of somebody else's is free to use, and changes nothing there.
        await http.post("/v1/completions", json=TRACED, headers=two)
        assert (await http.get(url, headers=one)).json()["num_steps"] == 2


async def test_nowhere_to_keep_them(with_settings, engine):
    async with with_settings(trace_store_bytes=ByteSize(0)) as http:
        refused = await http.post("/v1/completions", json=TRACED)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "speculation.trace"
        assert engine.requests == []
        assert (await http.get("/v1/models")).json()["data"][0]["traces"] is False


def test_the_oldest_go_first():
    store = StepTraceStore(2000)
    for number in range(40):
        add = store.open("", str(number))
        add(0, told(SECOND))
    kept = [number for number in range(40) if store.find("", str(number))]
    assert kept == list(range(40 - len(kept), 40))
    assert 1 < len(kept) < 10


def test_a_long_answer_keeps_its_latest_steps():
    store = StepTraceStore(2000)
    other = store.open("", "other")
    other(0, told(FIRST))
    add = store.open("", "long")
    for _ in range(100):
        add(0, told(SECOND))
    assert store.find("", "other") is None
    trace = store.find("", "long")
    assert trace is not None
    assert trace.size <= 2000
    choice = trace.choices[0]
    assert choice.num_steps == 100
    assert choice.dropped > 90
    assert [number for number, _ in choice.steps(0, 200)] == list(range(choice.dropped, 100))
    assert choice.steps(99, 100) == [(99, SECOND)]


def test_one_key_cannot_push_out_anothers():
    store = StepTraceStore(2000)
    store.open("a", "1")(0, told(FIRST))
    for number in range(MAX_REQUESTS + 10):
        store.open("b", str(number))(0, told(SECOND))
    assert store.find("a", "1") is not None


def test_many_empty_traces_are_bounded():
    store = StepTraceStore(1 << 30)
    for number in range(MAX_REQUESTS + 5):
        store.open("", str(number))
    assert store.find("", "4") is None
    assert store.find("", "5") is not None


def test_steps_of_a_trace_that_was_pushed_out_are_dropped():
    store = StepTraceStore(2000)
    early = store.open("", "early")
    early(0, told(SECOND))
    late = store.open("", "late")
    for _ in range(30):
        late(0, told(SECOND))
    assert store.find("", "early") is None
    early(0, told(SECOND))
    assert store.find("", "early") is None
