"""Byte-level tokenizers that grammars can be compiled for, and engines around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.config import EngineConfig
from resispec.engine.engine import Engine
from resispec.engine.request import SpeculationMode


def bpe(vocabulary: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    """Byte-level BPE over ``vocabulary``; the end token comes last."""
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    """Five tokens: a, b, c, ab and the end."""
    return bpe(["a", "b", "c", "ab"], [("a", "b")])


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    """Every byte, a few merges, and the end: 262 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [('"', ":"), ("t", "r"), ("n", "u"), ("l", "l"), ("{", '"')]
    return bpe([*alphabet, *(a + b for a, b in merges)], merges)


@pytest.fixture(scope="session")
def grammar_engine(tiny: Any) -> Callable[..., Engine]:
    """An engine with a tiny random pair over a tokenizer."""

    def make(tokenizer: Tokenizer, *, drafted: bool = True, **config: Any) -> Engine:
        size = tokenizer.get_vocab_size()
        target = tiny.model(0, vocab_size=size)
        draft = (
            LoadedDraft(256, model=tiny.model(7, vocab_size=size, num_hidden_layers=1)) if drafted else None
        )
        loaded = LoadedTarget(target, tokenizer, "tiny", 256, size, (size - 1,), {})
        config = {
            "speculation": SpeculationMode.FIXED,
            "max_tree_nodes": 12,
            "max_tree_depth": 3,
            **config,
        }
        return assemble(EngineConfig("tiny", draft="tiny" if draft else None, **config), loaded, draft)

    return make
