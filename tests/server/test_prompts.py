"""Encoding prompts: what takes long does not run on the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from resispec.server.prompts import LONG_TEXT, Prompts


class RecordingTokenizer:
    """One token a character; notes the thread it is used on."""

    chat_template = "any"

    def __init__(self) -> None:
        self.backend_tokenizer = Tokenizer(WordLevel({"a": 1}, unk_token="a"))
        self.threads: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return [1] * (len(text) + add_special_tokens)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "a" * (len(token_ids) - skip_special_tokens)

    def convert_ids_to_tokens(self, ids):
        raise NotImplementedError

    def apply_chat_template(self, conversation: list[dict[str, str]], **_: Any) -> str:
        self.threads.append(threading.current_thread().name)
        return "\n".join(message["content"] for message in conversation)


@pytest.mark.parametrize(
    ("count", "length", "aside"), [(1, 5, False), (1, LONG_TEXT, True), (3, 5, False), (2000, 0, True)]
)
async def test_long_conversations_are_laid_out_aside(count: int, length: int, aside: bool) -> None:
    tokenizer = RecordingTokenizer()
    prompts = Prompts(tokenizer, 10)
    try:
        await prompts.chat(
            [{"role": "user", "content": "a" * length}] * count,
            add_generation_prompt=True,
            continue_final_message=False,
            template_kwargs={},
        )
    finally:
        prompts.close()
    rendering = tokenizer.threads[0]
    assert rendering.startswith("tokenizer") is aside
