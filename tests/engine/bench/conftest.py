"""A tiny target in a folder, and measurements made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from resispec.engine.bench.measurement import Measurement


@pytest.fixture(scope="session")
def folder(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose every word of the built-in prompts is a token, mostly the unknown one."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.model(0, eos_token_id=tiny.eos).save_pretrained(path)
    words = ["<unk>", "<eos>", "the", "a", "and", "of", "with", *(f"t{n}" for n in range(7, tiny.vocabulary))]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<eos>").save_pretrained(
        path
    )
    return path


def made(tokens: int = 100, seconds: float = 1.0, decode_steps: int = 9, first: float = 0.1) -> Measurement:
    return Measurement(
        tokens=tokens,
        seconds=seconds,
        first_token_seconds=(first,),
        decoded_tokens=tokens - 1,
        deliveries=decode_steps,
        decode_steps=decode_steps,
        decode_seconds=seconds - first,
        phases={"draft": 0.25 * seconds, "verify": 0.75 * seconds},
    )


@pytest.fixture
def make() -> Callable[..., Measurement]:
    return made
