"""A matcher walked over trees, rolled back and committed says what a fresh one says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tokenizers import Tokenizer

from resispec.engine.grammar.base import PackedSet
from resispec.engine.grammar.compiler import GrammarCompiler
from resispec.engine.grammar.state import CompiledGrammar, GrammarState
from resispec.engine.request import StructuredKind, StructuredSpec

EOS = 4


def ids(packed: PackedSet) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.unpackbits(packed, bitorder="little"))]


def compiled(tokenizer: Tokenizer, kind: StructuredKind, value: str) -> CompiledGrammar:
    size = tokenizer.get_vocab_size()
    return GrammarCompiler(tokenizer, size, [size - 1]).compile(StructuredSpec(kind, value))


def text_grammar(letters: Tokenizer, words: list[str]) -> CompiledGrammar:
    return compiled(letters, "choice", json.dumps(words))


def test_allowed_tokens_are_those_that_some_answer_goes_on_with(letters: Tokenizer) -> None:
    words = ["", "c", "ca", "cab", "cabc", "aba", "abb", "cc"]
    spelled = ["a", "b", "c", "ab", ""]
    state = text_grammar(letters, words).start()
    for path in [(), (2,), (2, 0), (2, 0, 1), (2, 3), (2, 2), (3,), (0,)]:
        text = "".join(spelled[token] for token in path)
        expected = [t for t in range(EOS) if any(word.startswith(text + spelled[t]) for word in words)]
        expected += [EOS] if text in words else []
        assert ids(state.allowed(path)) == expected, path


@pytest.mark.parametrize("path", [(1,), (2, 1), (2, 2, 2), (4, 4), (2, 2, 4, 0)])
def test_paths_outside_have_some_law(letters: Tokenizer, path: tuple[int, ...]) -> None:
    state = text_grammar(letters, ["", "cc"]).start()
    assert ids(state.allowed(path))
    assert ids(state.allowed(())) == [2, EOS], "a path that failed leaves no trace"


def test_a_complete_grammar_ends_the_answer(letters: Tokenizer) -> None:
    grammar = text_grammar(letters, ["ca", "cb"])
    assert grammar.start().commit([2]) is None
    assert grammar.start().commit([2, 0, 3, 3]) == 2
    state = grammar.start()
    assert state.commit([2]) is None
    assert state.commit([1]) == 1


def test_masks_behind_what_is_committed_are_kept(letters: Tokenizer) -> None:
    state = text_grammar(letters, ["ca", "cb", "a"]).start()
    behind, elsewhere = state.allowed((2,)), state.allowed((0,))
    state.commit([2])
    assert state.allowed(()) is behind
    assert state.allowed((0,)) is not elsewhere


def test_an_end_token_ends_the_answer(letters: Tokenizer) -> None:
    state = text_grammar(letters, ["c", "cab"]).start()
    assert state.commit([2, EOS]) == 2


def test_tokens_outside_are_not_committed(letters: Tokenizer) -> None:
    with pytest.raises(RuntimeError, match="outside the grammar"):
        text_grammar(letters, ["ca"]).start().commit([1])


class Walks(RuleBasedStateMachine):
    """Any order of looks at trees, commits, and steps that are run again or thrown away."""

    grammar: CompiledGrammar

    @initialize()
    def begin(self) -> None:
        self.state = self.grammar.start()
        self.committed: list[int] = []
        self.ended = False

    def fresh(self) -> GrammarState:
        """What a request that was preempted, or a copy of it, would start from."""
        state = self.grammar.start()
        state.commit(self.committed)
        return state

    @rule(paths=st.lists(st.lists(st.integers(0, EOS), max_size=5), min_size=1, max_size=6))
    def look(self, paths: list[list[int]]) -> None:
        for path in paths:
            assert ids(self.state.allowed(tuple(path))) == ids(self.fresh().allowed(tuple(path)))
            assert self.state.accepts(tuple(path)) == self.fresh().accepts(tuple(path))

    @rule(count=st.integers(0, 4))
    def run_ahead(self, count: int) -> None:
        """What is forced is what a walk along single tokens finds, up to where an answer may end."""
        if self.ended:
            return
        expected: list[int] = []
        while len(expected) < count:
            allowed = ids(self.fresh().allowed(tuple(expected)))
            if len(allowed) > 1 or EOS in allowed:
                break
            expected += allowed
        assert self.state.forced(count) == tuple(expected)

    @rule(choices=st.lists(st.floats(0, 0.999), min_size=1, max_size=4), peek=st.booleans())
    def commit(self, choices: list[float], peek: bool) -> None:
        if self.ended:
            return
        block: list[int] = []
        for choice in choices:
            allowed = ids((self.state if peek else self.fresh()).allowed(tuple(block)))
            block.append(allowed[int(choice * len(allowed))])
            if block[-1] == EOS:
                break
        end = self.state.commit(block)
        assert end == self.fresh().commit(block)
        self.committed += block[:end]
        self.ended = end is not None


@pytest.mark.parametrize("regex", ["(ab|c)*", "c(a|b|c){2,4}(ab)?", "(a(b|c)*c)+|abcabc"])
def test_walks(letters: Tokenizer, regex: str) -> None:
    machine = type("Walks", (Walks,), {"grammar": compiled(letters, "regex", regex)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=15, deadline=None, derandomize=True)
    )
