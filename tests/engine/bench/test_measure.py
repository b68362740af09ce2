"""Everybody in turn; failures and interrupts."""

from __future__ import annotations

import pytest
from rich.console import Console

from resispec.engine.bench.contenders import FailedContender
from resispec.engine.bench.run import Results, measure
from resispec.engine.bench.summary import Case, summarize
from resispec.engine.bench.workload import Workload

WORK = tuple(Workload("made", 0.0, batch, 16, ((1, 2),) * 4) for batch in (1, 2))
QUIET = Console(quiet=True)


class Scripted:
    """Gives the same measurement each time; raises ``error`` at call number ``at``."""

    def __init__(self, name, log, measurement, error=None, at=None):
        self.name, self.log, self.measurement, self.error, self.at = name, log, measurement, error, at

    def takes(self, workload):
        return True

    def run(self, workload):
        self.log.append((self.name, workload))
        if self.error is not None and len([name for name, _ in self.log if name == self.name]) == self.at:
            raise self.error
        return self.measurement


def test_a_short_warm_up_then_turns_that_rotate(make):
    log: list[tuple[str, Workload]] = []
    contenders = [Scripted("a", log, make()), Scripted("b", log, make())]
    results = Results()
    measure(contenders, WORK, 2, results, QUIET)
    one, two = WORK
    short = [workload.warm_up() for workload in WORK]
    assert [(len(w.requests), w.tokens) for w in short] == [(1, 8), (2, 8)]
    warm = [("a", short[0]), ("b", short[0]), ("a", short[1]), ("b", short[1])]
    first = [("a", one), ("b", one), ("a", two), ("b", two)]
    second = [("b", one), ("a", one), ("b", two), ("a", two)]
    assert log == warm + first + second
    assert all(set(runs) == {0, 1} for runs in results.runs.values())
    assert len(results.cases) == len(results.runs) == 4


def test_a_failure_is_a_row_and_is_not_tried_again(make):
    log: list[tuple[str, Workload]] = []
    bad = Scripted("bad", log, make(), ValueError("no\n such thing"), at=1)
    results = Results()
    measure([bad, Scripted("good", log, make())], WORK[:1], 3, results, QUIET)
    failed, good = summarize(results.cases, results.runs, results.errors)
    assert failed.error == "ValueError: no such thing"
    assert failed.tokens_per_second is None
    assert good.error is None
    assert good.repeats == 3
    assert [name for name, _ in log] == ["bad", "good", "good", "good", "good"]


def test_what_could_not_be_loaded_fails_in_its_place(make):
    results = Results()
    lost = FailedContender("transformers", OSError("no weights"))
    measure([lost, Scripted("good", [], make())], WORK, 1, results, QUIET)
    assert results.errors == {Case("transformers", "made", 0.0, 1): "OSError: no weights"}
    assert [case.contender for case in results.cases] == ["transformers", "good", "good"]


def test_an_interrupt_keeps_what_was_measured(make):
    log: list[tuple[str, Workload]] = []
    stopped = Scripted("b", log, make(), KeyboardInterrupt(), at=3)  # warm-up, repeat 0, then this
    results = Results()
    with pytest.raises(KeyboardInterrupt):
        measure([Scripted("a", log, make()), stopped], WORK[:1], 5, results, QUIET)
    rows = summarize(results.cases, results.runs, results.errors)
    assert [row.repeats for row in rows] == [1, 1]
    assert all(row.error is None for row in rows)
