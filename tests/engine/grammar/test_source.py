"""What a grammar forces, and short choices, as candidates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from resispec.engine.engine import Engine
from resispec.engine.grammar.compiler import GrammarCompiler
from resispec.engine.grammar.source import GrammarSource
from resispec.engine.grammar.state import GrammarState
from resispec.engine.request import Request, SamplingParams, SpeculationParams, StructuredSpec
from resispec.engine.sources.base import Path


def state(tokenizer: Tokenizer, words: list[str]) -> GrammarState:
    size = tokenizer.get_vocab_size()
    spec = StructuredSpec("choice", json.dumps(words))
    return GrammarCompiler(tokenizer, size, [size - 1]).compile(spec).start()


def test_what_is_forced_is_certain(letters: Tokenizer) -> None:
    source = GrammarSource(state(letters, ["cabca"]))
    assert source.paths((), 3) == (Path((2, 3, 2), (1.0, 1.0, 1.0)),)
    assert source.paths((), 9) == (Path((2, 3, 2, 0, 4), (1.0,) * 5),)


def test_a_short_choice_is_shared_out(letters: Tokenizer) -> None:
    source = GrammarSource(state(letters, ["bcb", "ccc"]))
    assert set(source.paths((), 9)) == {
        Path((1, 2, 1, 4), (0.5, 1.0, 1.0, 1.0)),
        Path((2, 2, 2, 4), (0.5, 1.0, 1.0, 1.0)),
    }


def test_an_open_choice_says_nothing(characters: Tokenizer) -> None:
    assert GrammarSource(state(characters, list("abcdefgh"))).paths((), 4) == ()


def test_forced_runs_are_kept_whole(
    tiny: Any, grammar_engine: Callable[..., Engine], characters: Tokenizer
) -> None:
    """A step takes as much of a forced run as its tree holds, and one token more."""
    word = "thisismorethanatree" * 3
    spec = StructuredSpec("choice", json.dumps([word]))
    engine = grammar_engine(characters, max_tree_nodes=8)
    sampling = SamplingParams(structured=spec, max_tokens=90)
    ran = tiny.run(engine, [Request("plain", (1, 2), sampling, SpeculationParams(False))])
    assert ran.text["plain"] == word
    ran = tiny.run(engine, [Request("tree", (1, 2), sampling)])
    assert ran.text["tree"] == word
    metrics = ran.last["tree"].metrics.speculation
    steps = metrics.num_spec_steps
    assert metrics.num_accepted_draft_tokens >= 7 * (steps - 1)
    assert steps <= 1 + len(ran.tokens["tree"]) / 8
