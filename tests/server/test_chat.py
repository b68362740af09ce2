"""``POST /v1/chat/completions``: templates, defaults and answers."""

from __future__ import annotations

import httpx
import pytest

USER = {"role": "user", "content": "hi"}


async def chat(http: httpx.AsyncClient, *messages: object, **body: object) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"messages": list(messages) or [USER], **body})


def prompt_text(engine, tokenizer, index=-1):
    return tokenizer.decode(engine.requests[index].prompt_token_ids)


async def test_answer(http, engine, tokenizer):
    body = (await chat(http, {"role": "system", "content": "be"}, USER)).json()
    assert body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert prompt_text(engine, tokenizer) == "s:be;u:hi;>"
    # The rest of the context.
    assert engine.requests[0].sampling.max_tokens == 64 - len("s:be;u:hi;>")


async def test_text_parts_and_developer_role(http, engine, tokenizer):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await chat(http, {"role": "developer", "content": "x"}, {"role": "user", "content": parts})
    assert prompt_text(engine, tokenizer) == "s:x;u:a\nb;>"


async def test_template_options(http, engine, tokenizer):
    await chat(http, add_generation_prompt=False, chat_template_kwargs={"shout": "!"})
    assert prompt_text(engine, tokenizer) == "u:hi;!"
    await chat(http, USER, {"role": "assistant", "content": "wel"}, continue_final_message=True)
    assert prompt_text(engine, tokenizer).endswith("a:wel")


async def test_token_limits(http, engine):
    await chat(http, max_tokens=3)
    await chat(http, max_completion_tokens=4)
    await chat(http, max_tokens=5, max_completion_tokens=5)
    assert [request.sampling.max_tokens for request in engine.requests] == [3, 4, 5]
    response = await chat(http, max_tokens=3, max_completion_tokens=4)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("messages", "fields", "param", "part"),
    [
        ([{"role": "user", "content": "refuse"}], {}, "messages", "not this one"),
        ([{"role": "robot", "content": "x"}], {}, "messages[0].role", "'robot'"),
        ([{"role": "user", "content": None}], {}, "messages[0].content", "string"),
        ([{"role": "user"}], {}, "messages[0].content", "required"),
        (
            [USER, {"role": "user", "content": [{"type": "image_url"}]}],
            {},
            "messages[1].content",
            "image_url",
        ),
        ([USER | {"mood": 1}], {}, "messages[0].mood", "unknown"),
        ([USER], {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "tokenize"),
        (
            [USER],
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
            "continue",
        ),
        ([USER], {"logprobs": 1}, "logprobs", "boolean"),
        ([USER], {"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ([USER], {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ([USER], {"max_tokens": 0}, "max_tokens", "1"),
        ([USER], {"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ([{"role": "user", "content": "x" * 80}], {}, "messages", "64"),
    ],
)
async def test_refusals_name_the_field(http, engine, messages, fields, param, part):
    response = await chat(http, *messages, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert part in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not engine.requests


async def test_fields_without_effect_are_taken(http):
    response = await chat(
        http,
        USER | {"refusal": None, "tool_calls": [], "annotations": []},
        tools=[],
        logprobs=False,
        top_logprobs=0,
        response_format={"type": "text"},
        metadata={"a": "b"},
        store=False,
        user="me",
        service_tier="auto",
        safety_identifier="x",
        tool_choice=None,
        modalities=["text"],
        n=1,
    )
    assert response.status_code == 200, response.text


async def test_no_template(http, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    response = await chat(http)
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


async def test_a_prediction_is_passed_on_as_tokens(http, engine, tokenizer):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    for content, expected in (("Hello", "Hello"), (parts, "Hel\nlo"), ("", "")):
        response = await chat(http, prediction={"type": "content", "content": content})
        assert response.status_code == 200
        assert tokenizer.decode(engine.requests[-1].prediction_token_ids) == expected
    for wrong in ("Hello", {"type": "image", "content": "x"}, {"type": "content"}):
        response = await chat(http, prediction=wrong)
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("prediction")


async def test_proposers_are_chosen_and_their_figures_told(http, engine):
    for proposer in ("draft, ngram", ["draft", "ngram", "draft"]):
        await chat(http, speculation={"proposer": proposer})
        assert engine.requests[-1].speculation.proposers == ("draft", "ngram")
    await chat(http)
    assert engine.requests[-1].speculation.proposers is None


async def test_what_each_proposer_gave_is_told(http):
    body = (await chat(http)).json()
    assert body["metrics"]["speculative_decoding"]["sources"] == {
        "draft": {"num_draft_tokens": 6, "num_accepted_draft_tokens": 1},
        "ngram": {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2},
    }
