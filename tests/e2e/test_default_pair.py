"""The default pair, as `resispec serve` without any option gives it to people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def server(start_server) -> Iterator[Any]:
    server = start_server("--dtype", "float32", "--max-model-len", "1024", "--kv-memory", "512MiB")
    yield server
    assert server.stop() == 0, "".join(server.stderr)


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, **fields):
    return client.chat.completions.create(
        model="default", messages=QUESTION, temperature=0, max_tokens=48, extra_body=fields
    )


def test_the_answer_is_the_targets_own_and_was_drafted(client):
    # Whether trees pay is a question of how busy the machine is: `auto` may answer it with no.
    drafted = ask(client, return_token_ids=True, speculation={"mode": "fixed"})
    plain = ask(client, return_token_ids=True, speculation={"enabled": False})
    assert "Paris" in plain.choices[0].message.content
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    figures = drafted.metrics["speculative_decoding"]
    assert figures["exact"]
    assert figures["num_accepted_draft_tokens"] > 0
    assert drafted.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_every_verifier_gives_the_same_greedy_answer(client):
    answers = [
        ask(client, return_token_ids=True, speculation={"verifier": name, "tree": {"max_nodes": 3}})
        for name in ("resispec", "target")
    ]
    assert answers[0].choices[0].token_ids == answers[1].choices[0].token_ids
    names = [answer.metrics["speculative_decoding"]["verifier"] for answer in answers]
    assert names == ["resispec", "target"]


def test_characters_of_several_tokens_stream_whole(client):
    messages = [{"role": "user", "content": "Repeat exactly: 你好 ☕ 🎉 café"}]
    chunks = client.chat.completions.create(
        model="smollm2-135m-instruct", messages=messages, temperature=0.7, seed=3, max_tokens=64, stream=True
    )
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(
        chunk.choices[0].delta.content or "" for chunk in chunks
    )


def test_a_repeated_prompt_comes_from_the_cache(client):
    prompt = "The quick brown fox jumps over the lazy dog. " * 10
    first = client.completions.create(model="default", prompt=prompt, max_tokens=1)
    again = client.completions.create(model="default", prompt=prompt, max_tokens=1)
    other = client.completions.create(
        model="default", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "someone else"}
    )
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < again.usage.prompt_tokens_details.cached_tokens < again.usage.prompt_tokens
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_figures_reach_the_metrics(client, server):
    ask(client)
    text = httpx.get(f"{server.url}/metrics").text
    labels = 'model="smollm2-135m-instruct",verifier="resispec"'
    assert f"resispec_spec_decode_num_accepted_tokens_total{{{labels}}}" in text
    assert server.metric("spec_decode_num_accepted_tokens_total") > 0
    assert server.metric("spec_decode_num_draft_tokens_total") >= server.metric("tree_nodes_count")
