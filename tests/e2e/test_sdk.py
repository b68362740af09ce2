"""The unmodified openai SDK against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Hello there"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 24}
RESPONSE: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_output_tokens": 24}


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
    streamed = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]
    # Steps of other sizes round otherwise.
    assert [entry.logprob for entry in streamed] == pytest.approx([e.logprob for e in content], abs=1e-3)
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


def test_raw_responses(client):
    raw = client.chat.completions.with_raw_response.create(
        messages=MESSAGES, extra_headers={"X-Request-Id": "mine"}, **GREEDY
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().choices[0].message.content
    with client.completions.with_streaming_response.create(prompt="abc", stream=True, **GREEDY) as streamed:
        lines = [line for line in streamed.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_a_deadline_ends_an_answer(client):
    answer = client.completions.create(
        prompt="abc",
        model="tiny",
        max_tokens=4000,
        extra_headers={"X-Request-Timeout": "0.05"},
        extra_body={"ignore_eos": True},
    )
    [choice] = answer.choices
    assert (choice.finish_reason, choice.stop_reason) == ("abort", "request_timeout")
    assert answer.usage.completion_tokens < 4000


async def test_async_streams(tiny_server):
    async with openai.AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(messages=MESSAGES, **GREEDY)
        stream = await client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == whole.choices[0].message.content
        async with client.responses.stream(input="Hello there", **RESPONSE) as events:
            kinds = [event.type async for event in events]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.incomplete"


def test_responses(client):
    chat = client.chat.completions.create(messages=MESSAGES, **GREEDY).choices[0].message.content
    whole = client.responses.create(input="Hello there", **RESPONSE)
    assert whole.output_text == chat
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 24
    assert client.responses.retrieve(whole.id) == whole
    text = ""
    for event in client.responses.create(input=MESSAGES, stream=True, **RESPONSE):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == chat
    assert event.type == "response.incomplete"
    assert event.response.output_text == chat
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", previous_response_id=whole.id, **RESPONSE)
    assert caught.value.param == "previous_response_id"


def test_log_probabilities_of_responses_are_those_of_chat(client):
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **GREEDY)
    expected = chat.choices[0].logprobs.content
    whole = client.responses.create(input="Hello there", **asked, **RESPONSE).output[0].content[0].logprobs
    assert {len(entry.top_logprobs) for entry in whole} == {2}
    streamed = []
    for event in client.responses.create(input="Hello there", stream=True, **asked, **RESPONSE):
        if event.type == "response.output_text.delta":
            assert event.logprobs
            streamed += event.logprobs
    for found in (whole, streamed):
        assert [entry.token for entry in found] == [entry.token for entry in expected]
        values = [entry.logprob for entry in expected]
        assert [entry.logprob for entry in found] == pytest.approx(values, abs=1e-3)


def test_a_response_follows_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["digit"],
        "additionalProperties": False,
    }
    wanted: Any = {"format": {"type": "json_schema", "name": "digit", "schema": schema, "strict": True}}
    answer = client.responses.create(model="tiny", input="A digit?", text=wanted, max_output_tokens=100)
    assert answer.status == "completed"
    assert json.loads(answer.output_text)["digit"] in range(10)
    assert answer.text.format.name == "digit"


def test_a_conversation_of_responses(client):
    first = client.responses.create(input="Hello there", **RESPONSE)
    second = client.responses.create(input="And then?", previous_response_id=first.id, **RESPONSE)
    turns: Any = [*MESSAGES, {"role": "assistant", "content": first.output_text}]
    turns.append({"role": "user", "content": "And then?"})
    chat = client.chat.completions.create(messages=turns, **GREEDY)
    assert second.output_text == chat.choices[0].message.content
    # Without the store: what came out is sent back as it is.
    by_hand: Any = [*MESSAGES, *first.output, {"role": "user", "content": "And then?"}]
    assert client.responses.create(input=by_hand, store=False, **RESPONSE).output_text == second.output_text


def test_cancelling_a_response(client):
    with client.responses.create(
        model="tiny", input="Hello there", max_output_tokens=400, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        for event in stream:
            if event.type == "response.created":
                assert client.responses.cancel(event.response.id).status == "cancelled"
    assert event.type == "response.incomplete"
    assert event.response.status == "cancelled"
    assert event.response.usage.output_tokens < 400


def test_tokenize_counts_as_usage_does(client, tiny_server):
    body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
    counted = httpx.post(f"{tiny_server.url}/tokenize", json=body).json()["count"]
    assert counted == client.chat.completions.create(messages=MESSAGES, **GREEDY).usage.prompt_tokens
