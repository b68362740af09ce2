"""The unmodified openai SDK against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Hello there"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 24}


@pytest.fixture
def client(tiny_server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("other")


def test_completion_and_its_stream_agree(client):
    whole = client.completions.create(prompt="abc", **GREEDY)
    assert whole.usage.prompt_tokens == 3
    assert whole.usage.completion_tokens <= 24
    chunks = list(
        client.completions.create(prompt="abc", stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_chat_and_its_stream_agree(client):
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks].count(None) == len(chunks) - 1


def test_logprobs(client):
    asked = {**GREEDY, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked).choices[0]
    content = whole.logprobs.content
    assert [entry.token for entry in content] == [entry.top_logprobs[0].token for entry in content]
    assert (
        bytes(byte for entry in content for byte in entry.bytes).decode(errors="replace")
        == whole.message.content
    )
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asked)]
    assert [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content] == content
    scores = client.completions.create(prompt="abc", echo=True, logprobs=0, **GREEDY).choices[0].logprobs
    assert scores.tokens[:3] == ["a", "b", "c"]
    assert scores.token_logprobs[0] is None
    assert scores.text_offset == sorted(scores.text_offset)


def test_stream_helper(client):
    with client.chat.completions.stream(messages=MESSAGES, **GREEDY) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot
    assert final.choices[0].message.content
    assert final.choices[0].finish_reason == "length"


def test_speculation_changes_figures_and_not_the_answer(client):
    on = client.completions.create(prompt="abc", **GREEDY, extra_body={"return_token_ids": True})
    off = client.completions.create(
        prompt="abc", **GREEDY, extra_body={"return_token_ids": True, "speculation": {"enabled": False}}
    )
    assert on.choices[0].token_ids == off.choices[0].token_ids
    figures = on.metrics["speculative_decoding"]
    assert figures["exact"]
    assert figures["num_accepted_draft_tokens"] > 0
    assert figures["mean_acceptance_length"] > 1
    assert off.metrics["speculative_decoding"] is None
    details = on.usage.completion_tokens_details
    assert details.accepted_prediction_tokens == figures["num_accepted_draft_tokens"]


def test_seeds(client):
    arguments = {"model": "tiny", "prompt": "abc", "temperature": 1.0, "max_tokens": 24, "n": 2}
    one, same, other = (
        [choice.text for choice in client.completions.create(seed=seed, **arguments).choices]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    assert one[0] != one[1]


def test_stop_strings(client):
    whole = client.completions.create(prompt="abc", **GREEDY).choices[0].text
    middle = whole[len(whole) // 2]
    cut = client.completions.create(prompt="abc", stop=[middle], **GREEDY).choices[0]
    assert cut.text == whole[: whole.index(middle)]
    assert cut.finish_reason == "stop"


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt="abc", model="tiny", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)


async def test_many_at_once_answer_as_alone(tiny_server):
    async with openai.AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:

        async def answer(prompt: str) -> str:
            result = await client.completions.create(prompt=prompt, **GREEDY)
            return str(result.choices[0].text)

        async def streamed(prompt: str) -> str:
            chunks = await client.completions.create(prompt=prompt, stream=True, **GREEDY)
            return "".join([chunk.choices[0].text async for chunk in chunks])

        prompts = [f"prompt number {index}" for index in range(8)]
        alone = [await answer(prompt) for prompt in prompts]
        together = await asyncio.gather(*map(answer, prompts), *map(streamed, prompts))
    assert together == alone * 2
