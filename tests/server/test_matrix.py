"""Every way to ask, crossed: streamed answers are the whole ones, greedy ones are those of plain decoding.

The model is tiny and random and its tokens are bytes, so nearly all text is half characters: whatever
can be misaligned is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpx
import pytest
from transformers import PreTrainedTokenizerFast

from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.client import Deliver
from resispec.engine.config import EngineConfig
from resispec.engine.engine import Engine
from resispec.engine.outputs import EngineInfo, StepStats
from resispec.engine.request import Request, SpeculationMode
from resispec.server.app import create_app
from resispec.server.prompts import Tokenizer
from resispec.server.settings import ServerSettings

VOCABULARY = 258
CONTEXT = 128
TOLERANCE = 1e-3

PROMPTS: tuple[Any, ...] = ("naïve 😀!", ["ab", "cdé"], [72, 257, 101], [[1, 2], [200, 201, 202]])
STOPS: tuple[dict[str, Any], ...] = (
    {},
    {"stop": ["e", "\x00", "M"], "include_stop_str_in_output": True},
    {"stop": ["e", "\x00", "M"]},
    {"stop_token_ids": [*range(40, 80)]},
)


class LocalClient:
    """An engine in the test's own loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[str, Deliver] = {}
        self._task: asyncio.Task[None] | None = None
        self.healthy = True

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def generate(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        self._open[request.request_id] = deliver
        self._engine.add(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return lambda: None

    async def _run(self) -> None:
        while self._engine.has_work:
            for output in self._engine.step().outputs:
                self._open[output.request_id](output)
            await asyncio.sleep(0)

    def on_stats(self, listener: Callable[[StepStats], None]) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def engine(tiny: Any, tokenizer: Tokenizer) -> Engine:
    target, draft = (tiny.model(0, vocab_size=VOCABULARY) for _ in range(2))
    for parameter in draft.parameters():
        parameter.mul_(1.02)
    loaded = LoadedTarget(
        target,
        cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer,
        "tiny",
        CONTEXT,
        VOCABULARY,
        (256,),
        {},
    )
    config = EngineConfig(
        "tiny",
        draft="tiny",
        speculation=SpeculationMode.FIXED,
        max_tree_nodes=8,
        max_tree_depth=4,
        max_num_seqs=8,
    )
    return assemble(config, loaded, LoadedDraft(CONTEXT, model=draft))


@pytest.fixture
async def http(engine: Engine, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(LocalClient(engine), tokenizer, ServerSettings(target="tiny", draft="none"))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return cast(dict[str, Any], response.json())


async def chunks(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await http.post("/v1/completions", json={**body, "stream": True, "stream_options": options})
    assert response.status_code == 200, response.text
    events = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that a stream amounts to."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            known = choices.setdefault(
                part["index"], {"text": "", "token_ids": [], "logprobs": None, "index": part["index"]}
            )
            known["text"] += part["text"]
            known["token_ids"] += part["token_ids"]
            if part["logprobs"] is not None:
                known["logprobs"] = known["logprobs"] or {name: [] for name in part["logprobs"]}
                for name, values in part["logprobs"].items():
                    known["logprobs"][name] += values
            assert known.get("finish_reason") is None, "a chunk after the last one"
            known["finish_reason"], known["stop_reason"] = part["finish_reason"], part["stop_reason"]
            for name in ("prompt_token_ids", "prompt_logprobs"):
                if name in part:
                    assert name not in known
                    known[name] = part[name]
    assert events[-1]["choices"] == []
    return {"choices": [choices[index] for index in sorted(choices)], "usage": events[-1]["usage"]}


def check_logprobs(choice: dict[str, Any], *, echo: bool, top: int | None) -> None:
    scores = choice["logprobs"]
    if top is None:
        assert scores is None
        return
    prompt = len(choice["prompt_token_ids"]) if echo else 0
    assert {len(values) for values in scores.values()} == {prompt + len(choice["token_ids"])}
    assert scores["text_offset"] == sorted(scores["text_offset"])
    assert all(0 <= offset <= len(choice["text"]) for offset in scores["text_offset"])
    assert (scores["token_logprobs"][0] is None) == (scores["top_logprobs"][0] is None) == echo
    for value, likely in list(zip(scores["token_logprobs"], scores["top_logprobs"], strict=True))[echo:]:
        assert value < 0
        assert value in likely.values()
        assert len(likely) in (top, top + 1)


def close(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        # Of two alternatives that are nearly tied at the limit either may be shown.
        return all(close(left[name], right[name]) for name in left.keys() & right.keys())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) < TOLERANCE
    return bool(left == right)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("top", [None, 0, 3])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("verifier", ["resispec", "block"])
async def test_completions(
    http: httpx.AsyncClient, echo: bool, top: int | None, n: int, verifier: str
) -> None:
    drafted = 0
    for (place, prompt), stop in itertools.product(enumerate(PROMPTS), STOPS):
        body = {
            "prompt": prompt,
            "echo": echo,
            "logprobs": top,
            "n": n,
            "temperature": 0 if n == 1 else 1.0,
            "seed": 5 + place,
            "max_tokens": 12,
            "return_token_ids": True,
            "speculation": {"verifier": verifier},
            **stop,
        }
        answer = await whole(http, body)
        assert len(answer["choices"]) == n * (2 if place in (1, 3) else 1)
        for choice in answer["choices"]:
            check_logprobs(choice, echo=echo, top=top)
        interval = 1 if place % 2 else None
        events = await chunks(http, {**body, "stream_interval": interval})
        assert put_together(events) == {
            "choices": answer["choices"],
            "usage": {
                **answer["usage"],
                "prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"],
            },
        }
        if interval == 1:
            assert all(len(part["token_ids"]) == 1 for event in events for part in event["choices"])
        counts = [event["usage"]["completion_tokens"] for event in events]
        delivered = [sum(len(part["token_ids"]) for part in event["choices"]) for event in events]
        if interval == 1 or top is not None:
            assert counts == list(itertools.accumulate(delivered))
        drafted += answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        if n == 1:
            plain = await whole(http, {**body, "speculation": {"enabled": False}})
            assert close(plain["choices"], answer["choices"])
    assert drafted > 0, "no candidate was ever kept: the comparison would prove little"


async def test_logprobs_go_with_the_text_of_their_chunk(http: httpx.AsyncClient) -> None:
    body = {"prompt": "ab", "logprobs": 0, "max_tokens": 40, "temperature": 1.0, "stop": ["\x00\x01\x02"]}
    for seed in range(10):
        text = ""
        for event in await chunks(http, {**body, "seed": seed}):
            for part in event["choices"]:
                if part["logprobs"] is None:
                    continue
                assert all(len(text) <= offset for offset in part["logprobs"]["text_offset"])
                text += part["text"]
                assert all(offset <= len(text) for offset in part["logprobs"]["text_offset"])
                clean = [token for token in part["logprobs"]["tokens"] if not token.startswith("bytes:")]
                assert all(token in part["text"] or token == "<eos>" for token in clean)


async def test_chat_streams_amount_to_the_whole(http: httpx.AsyncClient) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 2,
        "prompt_logprobs": 1,
        "max_tokens": 20,
        "temperature": 1.0,
        "seed": 3,
        "return_token_ids": True,
    }
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(choice["token_ids"])
    assert (
        bytes(itertools.chain(*(entry["bytes"] for entry in content)))
        .decode(errors="replace")
        .startswith(choice["message"]["content"])
    )
    response = await http.post("/v1/chat/completions", json={**body, "stream": True})
    events = [json.loads(part.removeprefix("data: ")) for part in response.text.split("\n\n")[:-2]]
    parts = [part for event in events for part in event["choices"]]
    assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
    assert [entry for part in parts for entry in (part["logprobs"] or {"content": []})["content"]] == content
    assert [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event] == [
        answer["prompt_logprobs"]
    ]
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])


async def test_a_prompt_may_only_be_scored(http: httpx.AsyncClient) -> None:
    body = {"prompt": "naïve 😀!", "echo": True, "logprobs": 1}
    scored = (await whole(http, {**body, "max_tokens": 0}))["choices"][0]
    longer = (await whole(http, {**body, "max_tokens": 1, "temperature": 0}))["choices"][0]
    assert scored["text"] == "naïve 😀!"
    assert scored["finish_reason"] == "length"
    assert scored["logprobs"]["tokens"] == longer["logprobs"]["tokens"][:-1]
    assert close(scored["logprobs"]["token_logprobs"], longer["logprobs"]["token_logprobs"][:-1])
    assert scored["logprobs"]["tokens"][2:4] == ["bytes:\\xc3", "bytes:\\xaf"]
    # Both bytes of the ï end where it ends; the next token begins there.
    assert scored["logprobs"]["text_offset"][:5] == [0, 1, 2, 2, 3]
