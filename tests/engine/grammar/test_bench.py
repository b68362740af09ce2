"""A bench's contenders with answers in a form."""

from __future__ import annotations

import pytest

from resispec.engine.bench.contenders import BenchError, EngineContender
from resispec.engine.bench.workload import Workload
from resispec.engine.request import FormHelp, SpeculationParams, StructuredSpec

FORM = StructuredSpec(
    "json_schema",
    '{"type": "object", "properties": {"name": {"enum": ["a", "b"]}, "number": {"enum": [1, 2]}}, '
    '"required": ["name", "number"], "additionalProperties": false}',
)
ANSWER = len('{"name": "a", "number": 1}')  # a token for each of its characters, less the merged ones
MERGED = 4  # {", ": twice, and nu


def work(tokens: int = 60) -> Workload:
    prompts = ((1, 2, 3), (4, 5, 6))
    return Workload("made", 1.0, 2, tokens, prompts, forms=(FORM, FORM))


def test_answers_end_where_their_form_ends(grammar_engine, characters):
    plain = EngineContender("plain", grammar_engine(characters, drafted=False)).run(work())
    assert plain.tokens == 2 * (ANSWER - MERGED)
    assert plain.tokens_per_step == 1
    drafted = EngineContender("speculative", grammar_engine(characters)).run(work())
    assert drafted.tokens == plain.tokens
    assert (drafted.tokens_per_step or 0) > 2  # the keys are forced
    for measured in (plain, drafted):
        assert measured.grammar_share is not None
        assert 0 < measured.grammar_share < 1
        assert measured.generation_seconds == ()
    assert plain.full_tokens == plain.tokens - 2  # both were in every step that had no prompt
    assert plain.full_seconds == plain.decode_seconds


def test_what_forms_are_used_for_can_be_left_out(grammar_engine, characters):
    """Without anything, only the draft says what may follow, and nothing is taken at once."""
    engine = grammar_engine(characters)
    steps = {}
    for form in (frozenset(FormHelp), frozenset({FormHelp.FORCED}), frozenset()):
        speculation = SpeculationParams(form=form)
        measured = EngineContender("speculative", engine, speculation).run(work())
        assert measured.tokens == 2 * (ANSWER - MERGED)
        steps[form] = measured.decode_steps
    assert steps[frozenset(FormHelp)] <= steps[frozenset({FormHelp.FORCED})] < steps[frozenset()]


def test_more_is_not_asked_for_than_they_may_have(grammar_engine, characters):
    contender = EngineContender("plain", grammar_engine(characters, drafted=False))
    assert contender.run(work(tokens=5)).tokens == 10


def test_a_request_that_fails_is_no_figure(grammar_engine, characters, monkeypatch):
    engine = grammar_engine(characters, drafted=False)
    monkeypatch.setattr("resispec.engine.engine.end_block", lambda *_: 1 / 0)
    with pytest.raises(BenchError, match="failed inside the engine"):
        EngineContender("plain", engine).run(work())
