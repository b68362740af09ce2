"""A scripted engine, a byte-level tokenizer, and a client on the app."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import ByteSize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from resispec.engine.client import Deliver
from resispec.engine.outputs import (
    EngineInfo,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    SourceCounts,
    SpeculationMetrics,
    StepStats,
    TokenLogprobs,
    Usage,
)
from resispec.engine.request import Request, RequestError
from resispec.engine.trace import StepTrace
from resispec.server import prompts
from resispec.server.app import create_app
from resispec.server.lifecycle import Server
from resispec.server.listen import bind
from resispec.server.settings import ServerSettings

VOCAB_SIZE = 258
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}!<tool_call>{% endfor %}"
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.x }})"
    "{% endfor %};{% endfor %}"
)
INFO = EngineInfo(
    target="tiny/target",
    draft="tiny/draft",
    target_path="/nowhere",
    device="cpu",
    dtype="float32",
    quantization="none",
    max_model_len=64,
    max_num_seqs=2,
    vocab_size=VOCAB_SIZE,
    eos_token_ids=(256,),
    verifier="resispec",
    verifiers=("resispec", "target"),
    proposers=("draft", "ngram", "prediction"),
    draft_quantization="int8",
    refused_verifiers={"resispec-paper": "verifier 'resispec-paper' is not exact"},
    max_tree_nodes=12,
    max_tree_depth=4,
    kv_rows=1024,
    kv_bytes_per_row=2048,
    generation_defaults={"temperature": 0.6, "top_k": 40.0},
)

SPECULATION = SpeculationMetrics(
    verifier="resispec",
    exact=True,
    num_spec_steps=2,
    num_draft_tokens=10,
    num_spec_tokens=6,
    num_accepted_draft_tokens=3,
    acceptance_histogram=(0, 1, 1),
    accepted_by_depth=(2, 1, 0),
    proposed_by_depth=(2, 2, 2),
    accepted_by_child=(2, 1),
    by_source=(SourceCounts("draft", 6, 1), SourceCounts("ngram", 4, 2)),
    draft_ms=1.0,
    verify_ms=2.0,
    overhead_ms=0.5,
)
METRICS = RequestMetrics(
    queue_time_ms=1.0,
    prefill_time_ms=2.0,
    time_to_first_token_ms=3.0,
    generation_time_ms=4.0,
    e2e_ms=7.0,
    mean_itl_ms=1.0,
    tokens_per_second=500.0,
    num_preemptions=0,
    speculation=SPECULATION,
)


@dataclass(frozen=True)
class Piece:
    """One output: its text and tokens, and how it ends, if it does."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    delay: float = 0.0
    trace: tuple[StepTrace, ...] = ()


HELLO = (Piece("He", (72, 101)), Piece("", (108,)), Piece("llo", (108, 111), FinishReason.STOP, 256))


def _scores(tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, ...]:
    """Each token is second, with -0.5; the likelier one is 70, then come 71 and on."""
    likely = tuple((70 + rank, -0.25 - rank) for rank in range(top))
    return tuple(TokenLogprobs(token, -0.5, 2, likely) for token in tokens)


@dataclass
class FakeEngine:
    """Plays ``script`` for every request, and remembers what it was asked and what was aborted."""

    info: EngineInfo = INFO
    healthy: bool = True
    script: Callable[[Request], tuple[Piece, ...]] = lambda _: HELLO
    refuse: RequestError | None = None
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    listeners: list[Callable[[StepStats], None]] = field(default_factory=list)
    closed: bool = False

    def generate(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        self.requests.append(request)
        playing = asyncio.create_task(self._play(request, deliver))

        def abort() -> None:
            if not playing.done():
                playing.cancel()
                self.aborted.append(request.request_id)

        return abort

    async def _play(self, request: Request, deliver: Deliver) -> None:
        delivered = 0
        sampling = request.sampling
        await asyncio.sleep(0)
        if self.refuse is not None:
            deliver(self.refuse)
            return
        for piece in self.script(request):
            await asyncio.sleep(piece.delay)
            ends = tuple(range(delivered + 1, delivered + 1 + len(piece.tokens)))  # a character a token
            delivered += len(piece.tokens)
            done = piece.finish is not None
            deliver(
                RequestOutput(
                    request.request_id,
                    piece.text,
                    piece.tokens,
                    Usage(len(request.prompt_token_ids), delivered, cached_tokens=1),
                    piece.finish,
                    piece.stop_reason,
                    METRICS if done and piece.finish is not FinishReason.ERROR else None,
                    piece.error,
                    text_ends=ends,
                    logprobs=() if sampling.logprobs is None else _scores(piece.tokens, sampling.logprobs),
                    prompt_logprobs=()
                    if sampling.prompt_logprobs is None or delivered > len(piece.tokens)
                    else _scores(request.prompt_token_ids[1:], sampling.prompt_logprobs),
                    trace=piece.trace,
                )
            )

    def on_stats(self, listener: Callable[[StepStats], None]) -> None:
        self.listeners.append(listener)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="session")
def tokenizer() -> prompts.Tokenizer:
    """One token a byte; ids 256 and 257 are <eos> and <bos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab={**vocabulary, "<eos>": 256, "<bos>": 257}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>")
    tokenizer.chat_template = (
        "{% for message in messages %}"
        "{% if message['content'] == 'refuse' %}{{ raise_exception('not this one') }}{% endif %}"
        "{{ message['role'][0] }}:{{ message['content'] }};{% endfor %}"
        "{% if shout is defined %}{{ shout }}{% endif %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    return cast(prompts.Tokenizer, tokenizer)


@pytest.fixture
def piece() -> type[Piece]:
    """For tests that write a script of their own."""
    return Piece


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def settings() -> ServerSettings:
    return ServerSettings(target="tiny", draft="none", max_queue=2, max_body_bytes=ByteSize(10_000))


@pytest.fixture
def app(engine: FakeEngine, tokenizer: prompts.Tokenizer, settings: ServerSettings) -> FastAPI:
    return create_app(engine, tokenizer, settings)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
async def tools_http(
    engine: FakeEngine, tokenizer: prompts.Tokenizer, settings: ServerSettings
) -> AsyncIterator[httpx.AsyncClient]:
    """A client on an app whose chat template lays out tools."""
    own = copy.copy(tokenizer)
    own.chat_template = TOOL_TEMPLATE
    transport = httpx.ASGITransport(app=create_app(engine, own, settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
def script() -> Callable[..., Callable[[Request], tuple[Piece, ...]]]:
    """Makes an answer of texts that come one by one, and of its end."""

    def make(*texts: str, finish: FinishReason = FinishReason.STOP) -> Callable[[Request], tuple[Piece, ...]]:
        pieces = [Piece(text, (65,) * len(text)) for text in texts]
        return lambda _: (*pieces, Piece("", (256,), finish, None))

    return make


@pytest.fixture
def events() -> Callable[[str], list[dict[str, Any]]]:
    """Reads the events of a response's stream; their names are those in their data."""

    def read(text: str) -> list[dict[str, Any]]:
        found = []
        for block in text.split("\n\n")[:-1]:
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        return found

    return read


@pytest.fixture
def with_settings(
    engine: FakeEngine, tokenizer: prompts.Tokenizer, settings: ServerSettings
) -> Callable[..., httpx.AsyncClient]:
    """A client on an app with some settings changed."""

    def make(**changes: object) -> httpx.AsyncClient:
        changed = settings.model_copy(update=changes)
        transport = httpx.ASGITransport(app=create_app(engine, tokenizer, changed))
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    return make


@dataclass
class Running:
    """A server on a real socket, in the test's own loop."""

    server: Server
    http: httpx.AsyncClient
    task: asyncio.Task[None]


@pytest.fixture
async def running(app: FastAPI, engine: FakeEngine) -> AsyncIterator[Running]:
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    ready = asyncio.Event()
    server = Server(config, engine, app.state.resispec.lifecycle, announce=ready.set)
    task = asyncio.create_task(server.serve([listener]))
    await asyncio.wait_for(ready.wait(), 10)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url) as client:
        yield Running(server, client, task)
    server.should_exit = True
    await asyncio.wait_for(task, 10)
    listener.close()
