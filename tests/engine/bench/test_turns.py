"""Slices: everybody's steps between everybody else's, each by a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from resispec.engine.bench import turns
from resispec.engine.bench.load import loaders
from resispec.engine.bench.measurement import Measurement
from resispec.engine.bench.settings import BenchSettings
from resispec.engine.bench.turns import SLICE, Divisible, Stopwatch, run_side_by_side
from resispec.engine.bench.workload import Workload

WORK = Workload("made", 0.0, 1, 6, ((7, 9, 11),) * 3)
STEP = SLICE / 4


class Time:
    """Goes on when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: self.now))


class Stepper:
    """Takes so many steps of equal time."""

    def __init__(
        self, name: str, steps: int, time: Time, log: list[str], machinery: object = None, fails: bool = False
    ) -> None:
        self.name, self.steps, self.time, self.log, self.fails = name, steps, time, log, fails
        self.clock = Stopwatch()
        self.machinery = machinery or self

    def parts(self, workload: Workload) -> Generator[None, None, Measurement]:
        began = self.clock()
        for _ in range(self.steps):
            self.time.now += STEP
            self.log.append(self.name)
            yield
        if self.fails:
            raise ValueError("no more")
        tokens = workload.tokens
        return Measurement(tokens, self.clock() - began, (0.0,), tokens, tokens, self.steps, 0.0)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def run(*steppers: Stepper) -> dict[str, Measurement | Exception]:
    results: dict[str, Measurement | Exception] = {}

    def done(contender: Divisible, result: Measurement | Exception) -> None:
        results[contender.name] = result

    run_side_by_side(steppers, WORK, done)
    return results


def seconds(result: Measurement | Exception) -> float:
    assert isinstance(result, Measurement)
    return result.seconds


def test_slices_alternate_and_each_counts_its_own_time_only(time: Time) -> None:
    log: list[str] = []
    results = run(Stepper("a", 10, time, log), Stepper("b", 6, time, log))
    assert "".join(log) == "aaaabbbbaaaabbaa"
    assert seconds(results["a"]) == pytest.approx(10 * STEP)
    assert seconds(results["b"]) == pytest.approx(6 * STEP)


def test_those_that_share_an_engine_follow_each_other_in_longer_slices(time: Time) -> None:
    log: list[str] = []
    shared = object()
    steppers = [
        Stepper("a", 12, time, log),
        Stepper("b", 12, time, log, shared),
        Stepper("c", 12, time, log, shared),
    ]
    results = run(*steppers)
    assert "".join(log) == "aaaa" + 8 * "b" + "aaaa" + "bbbbcccc" + "aaaa" + 8 * "c"
    assert all(seconds(result) == pytest.approx(12 * STEP) for result in results.values())


def test_one_that_fails_stops_nobody(time: Time) -> None:
    log: list[str] = []
    shared = object()
    bad, next_in_line = Stepper("a", 2, time, log, shared, fails=True), Stepper("b", 3, time, log, shared)
    results = run(bad, next_in_line, Stepper("c", 9, time, log))
    assert isinstance(results["a"], ValueError)
    assert seconds(results["b"]) == pytest.approx(3 * STEP)
    assert seconds(results["c"]) == pytest.approx(9 * STEP)


def test_engines_tell_the_times_of_requests_by_the_same_clock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE", 0.001)
    settings = BenchSettings(
        str(folder), str(folder), dtype="float32", offline=True, num_threads=1, transformers=False
    )
    contenders = [
        contender
        for _, load in loaders(settings, folder, torch.device("cpu"), torch.float32, 64, silent)
        for contender in load()
    ]
    steppers = [contender for contender in contenders if isinstance(contender, Divisible)]
    assert [contender.name for contender in steppers] == ["plain", "speculative"]
    measured: list[Measurement | Exception] = []
    run_side_by_side(steppers, WORK, lambda _, result: measured.append(result))
    for result in measured:
        spent = seconds(result)
        assert isinstance(result, Measurement)
        assert 0.5 * spent < sum(result.first_token_seconds) + sum(result.generation_seconds) <= spent
        assert sum(result.gap_seconds) <= spent


silent: Callable[[str], object] = lambda _: None  # noqa: E731
