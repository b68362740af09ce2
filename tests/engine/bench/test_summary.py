"""Medians over repeats, ratios within each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resispec.engine.bench.summary import Case, Spread, headline_ratios, summarize

PLAIN = Case("plain", "chat", 0.0, 1)
DRAFTED = Case("speculative", "chat", 0.0, 1)
OTHER = Case("transformers", "chat", 0.0, 1)
BATCHED = Case("plain", "chat", 0.0, 8)


def test_figures_of_a_row(make):
    runs = {PLAIN: {n: make(100, seconds) for n, seconds in enumerate((1.0, 4.0, 2.0))}}
    (row,) = summarize([PLAIN], runs, {})
    assert row.repeats == 3
    assert row.tokens_per_second == Spread(50, 25, 100)
    assert row.step_ms.median == pytest.approx(1900 / 9)
    assert row.tokens_per_step == Spread(11, 11, 11)
    assert row.first_token_ms == Spread(100, 100, 100)
    assert row.phases == {"draft": 0.25, "verify": 0.75}
    assert row.over.get("transformers") is None


def test_ratios_are_taken_within_a_repeat(make):
    """The machine slows down fourfold; the ratio does not change."""
    times = {0: 1.0, 1: 2.0, 2: 4.0}
    runs = {
        PLAIN: {n: make(100, seconds) for n, seconds in times.items()},
        DRAFTED: {n: make(100, seconds / 2) for n, seconds in times.items() if n != 0},
        OTHER: {n: make(100, 3 * seconds) for n, seconds in times.items()},
    }
    plain, drafted, other = summarize([PLAIN, DRAFTED, OTHER], runs, {})
    assert drafted.over["plain"] == Spread(2, 2, 2)
    assert drafted.over["transformers"].median == pytest.approx(6)
    assert plain.over["plain"] == Spread(1, 1, 1)
    assert other.over["plain"].median == pytest.approx(1 / 3)


def test_a_batch_is_compared_with_its_own_plain_and_single_transformers(make):
    drafted = Case("speculative", "chat", 0.0, 8)
    runs = {
        PLAIN: {0: make(100, 8.0)},
        BATCHED: {0: make(100, 2.0)},
        drafted: {0: make(100, 1.0)},
        OTHER: {0: make(100, 16.0)},
    }
    row = summarize([PLAIN, BATCHED, drafted, OTHER], runs, {})[2]
    assert row.over["plain"] == Spread(2, 2, 2)
    assert row.over["transformers"] == Spread(16, 16, 16)
    ratios = {ratio.name: ratio.value.median for ratio in headline_ratios(list(runs), runs)}
    assert ratios == {
        "plain at batch 8 over plain at batch 1": 4,
        "plain over transformers at batch 1": 2,
        "speculative over plain at batch 8": 2,
    }


def test_rows_over_all_prompts_pool_their_runs(make):
    code = Case("plain", "code", 0.0, 1)
    runs = {PLAIN: {0: make(100, 1.0), 1: make(100, 1.0)}, code: {0: make(300, 3.0, decode_steps=291)}}
    rows = summarize([PLAIN, code], runs, {})
    assert [row.case.prompts for row in rows] == ["chat", "code", "all"]
    assert rows[2].repeats == 1  # the one that both were in
    assert rows[2].tokens_per_second == Spread(100, 100, 100)
    assert rows[2].tokens_per_step.median == pytest.approx(398 / 300)


def test_no_pooled_figures_of_a_part_that_failed(make):
    code = Case("plain", "code", 0.0, 1)
    rows = summarize([PLAIN, code], {PLAIN: {0: make()}}, {code: "ValueError: no"})
    assert [(row.case.prompts, row.error) for row in rows] == [("chat", None), ("code", "ValueError: no")]


def test_what_never_ran_says_so():
    (row,) = summarize([PLAIN], {}, {})
    assert row.error == "interrupted before it ran"


def test_a_reported_speedup_is_held_against_the_same_requests_without_speculation(make):
    before = replace(make(), generation_seconds=(2.0, 3.0, 4.0))
    after = replace(make(), generation_seconds=(1.0, 2.0, 4.0), speedups=(2.1, None, 1.2))
    plain, drafted = summarize([PLAIN, DRAFTED], {PLAIN: {0: before}, DRAFTED: {0: after}}, {})
    assert drafted.reported.median == pytest.approx(1.65)
    assert drafted.replayed.median == pytest.approx(1.5), "of the two that reported one"
    assert drafted.well_reported.median == 0.5
    assert plain.replayed is None
    other = replace(before, generation_seconds=(2.0,))
    assert summarize([PLAIN, DRAFTED], {PLAIN: {0: other}, DRAFTED: {0: after}}, {})[1].replayed is None


def test_answers_with_forms_are_compared_while_all_places_are_filled(make):
    """10 tokens a second against 20, though all in all both take as long; nothing of free answers."""
    before = replace(make(), grammar_seconds=0.1, full_tokens=10, full_seconds=1.0)
    after = replace(make(), grammar_seconds=0.1, full_tokens=10, full_seconds=0.5)
    plain, drafted = summarize([PLAIN, DRAFTED], {PLAIN: {0: before}, DRAFTED: {0: after}}, {})
    assert plain.decoding == Spread(1, 1, 1)
    assert drafted.decoding == Spread(2, 2, 2)
    assert drafted.over["plain"].median == 1
    assert drafted.grammar_percent.median == pytest.approx(10)
    assert summarize([PLAIN], {PLAIN: {0: make()}}, {})[0].decoding is None
