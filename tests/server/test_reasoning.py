"""Reasoning is split off, in pieces of any size."""

from __future__ import annotations

import copy
import json

import httpx
import pytest

from resispec.engine.outputs import FinishReason
from resispec.server.app import create_app
from resispec.server.tools.reasoning import ReasoningSplitter

CASES = [
    (False, "<think>\nso, </thin yes\n</think>\n\nHi <b>", "so, </thin yes", "Hi <b>"),
    (False, "\n<think>a</think>b", "a", "b"),
    (False, "<think></think>b", "", "b"),
    (False, "Hi <think>no</think>", "", "Hi <think>no</think>"),
    (False, "<thin", "", "<thin"),
    (False, "<think>cut", "cut", ""),
    (True, "\nwell</think>\nHi", "well", "Hi"),
    (True, "cut </th", "cut </th", ""),
]


@pytest.mark.parametrize(("is_open", "text", "reasoning", "answer"), CASES)
def test_splitting(is_open: bool, text: str, reasoning: str, answer: str) -> None:
    for cuts in ([text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))):
        splitter = ReasoningSplitter(is_open=is_open)
        news = [splitter.feed(piece, last=False) for piece in cuts] + [splitter.feed("", last=True)]
        assert ("".join(r for r, _ in news), "".join(a for _, a in news)) == (reasoning, answer), cuts


@pytest.mark.parametrize("opened", [False, True])
async def test_in_chat(engine, tokenizer, settings, piece, opened):
    own = copy.copy(tokenizer)
    own.chat_template = (
        "{% for message in messages %}{{ message.content }}{{ message.reasoning_content }}{% endfor %}"
        + ("<think>\n" if opened else "{# <think> #}")
        + "{# </think> #}"
    )
    begin = "" if opened else "<think>"
    engine.script = lambda _: (
        piece(begin + "Hm.</th", (65,) * 8),
        piece("ink>\nHi", (65,) * 7),
        piece("", (256,), FinishReason.STOP, None),
    )
    transport = httpx.ASGITransport(app=create_app(engine, own, settings))
    messages = [{"role": "assistant", "content": "a", "reasoning_content": "b"}]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        body = {"messages": messages, "max_tokens": 9}
        message = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
        response = await http.post("/v1/chat/completions", json=body | {"stream": True})
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Hi")
    assert tokenizer.decode(engine.requests[0].prompt_token_ids).startswith("ab")
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "Hi"
