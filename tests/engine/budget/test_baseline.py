"""The baseline: what plain decoding takes, from plain steps among others, through noise and stalls."""

from __future__ import annotations

import random

import pytest

from resispec.engine.budget.baseline import Baseline, BaselineProbes
from resispec.engine.budget.costs import MeasuredCosts, reference_costs
from resispec.engine.budget.meter import SpeedMeter
from resispec.engine.cost.surface import Surface
from resispec.engine.cost.table import PLAIN, CostTable

CPU = reference_costs("cpu")


def test_it_finds_the_time_of_every_batch_size_through_noise_and_a_stall():
    baseline, rng = Baseline(CPU), random.Random(3)
    assert not baseline.is_measured(4)
    for step in range(300):
        for batch, truth in ((1, 0.030), (4, 0.041)):
            stall = 50.0 if step == 200 else 1.0
            baseline.observe(batch, 100 * batch, truth * stall * rng.uniform(0.9, 1.1))
    assert baseline.seconds(1, 100) == pytest.approx(0.030, rel=0.05)
    assert baseline.seconds(4, 400) == pytest.approx(0.041, rel=0.05)
    assert baseline.is_measured(4)
    assert baseline.seconds(5, 500) / baseline.seconds(4, 400) == pytest.approx(
        (CPU.target_seconds(5, 500) + CPU.sample_seconds(5, 0))
        / (CPU.target_seconds(4, 400) + CPU.sample_seconds(4, 0))
    )


def test_between_plain_steps_it_follows_the_machines_pace():
    """A machine that others slow down shows in every forward, with candidates or without."""
    knots = (1, 2, 4, 8, 16)
    table = CostTable(Surface(knots, (256, 4096), [[0.015 + 0.001 * rows] * 2 for rows in knots]))
    costs = MeasuredCosts(table)
    baseline = Baseline(costs)
    for _ in range(20):
        table.observe_target(4, 400, 0.02)
        table.observe_target(12, 412, 0.03)
        costs.observe_sample(4, 0, 0.001)
        baseline.observe(4, 400, 0.025)
    assert baseline.seconds(4, 400) == pytest.approx(0.025, rel=0.05)
    for _ in range(40):
        table.observe_target(12, 412, 0.045)
        costs.observe_sample(4, 8, 0.003)
    assert 1.1 * 0.025 < baseline.seconds(4, 400) < 1.5 * 0.025, "not all of it: trees may be slow for once"
    for _ in range(20):
        baseline.observe(4, 400, 0.0375)
    assert baseline.seconds(4, 400) == pytest.approx(0.0375, rel=0.05)


def test_one_step_of_a_new_batch_size_is_not_all_there_is_to_know():
    baseline = Baseline(CPU)
    for _ in range(10):
        baseline.observe(4, 400, 0.04)
    usual = baseline.seconds(5, 500)
    baseline.observe(5, 500, 2 * usual)
    assert baseline.seconds(5, 500) == pytest.approx(1.5 * usual)
    assert baseline.seconds(4, 400) == pytest.approx(0.04)


def test_probes_take_their_share_of_each_batch_size():
    probes = BaselineProbes(0.02)
    due = [probes.is_due(1 + step % 2) for step in range(1000)]
    assert sum(due[200:]) == pytest.approx(16, abs=2)
    assert due.index(True) < 10, "the first one comes early"
    assert sum(due[:20]) == 8, "and some more soon after it"
    assert sum(due[20:100]) <= 2
    assert not any(BaselineProbes(0.0).is_due(1) for _ in range(1000))


def test_the_less_trees_gain_the_more_probes_there_are():
    def share(gain: float) -> float:
        probes = BaselineProbes(0.01)
        return sum(probes.is_due(4, gain) for _ in range(4000)) / 4000

    assert share(1.0) == pytest.approx(0.01, abs=0.002), "not known: as set"
    assert share(1.02) == pytest.approx(0.1, abs=0.01)
    assert share(1.1) == pytest.approx(0.05, abs=0.005)
    assert share(2.0) == pytest.approx(0.01, abs=0.002)
    assert not any(BaselineProbes(0.0).is_due(1, 1.02) for _ in range(100))


class Item:
    def __init__(self, length, num_tokens=1, decodes=True):
        self.length, self.num_tokens, self.decodes = length, num_tokens, decodes
        self.tree, self.catch_up = None, 0


def test_only_plain_steps_are_the_baseline_and_waits_between_steps_count():
    meter = SpeedMeter(MeasuredCosts(CPU))
    for index in range(40):
        step = meter.plain_step([Item(50), Item(60)])
        assert step.is_plain
        meter.finish(step, 0.001, began=index + 0.4, ended=index + 1.0, more=True)
    measured = meter.plain_step([Item(50), Item(60)])
    assert measured.is_measured
    assert measured.seconds == pytest.approx(1.0, rel=0.05), "from end to end, not from a step's begin"
    with_prompt = meter.plain_step([Item(50), Item(60), Item(32, 32, decodes=False)])
    assert not with_prompt.is_plain
    assert with_prompt.prompt_seconds > 0
    assert with_prompt.seconds == measured.seconds


def test_a_pause_is_no_step():
    meter = SpeedMeter(MeasuredCosts(CPU))
    for start in (0.0, 100.0):
        step = meter.plain_step([Item(50)])
        meter.finish(step, 0.001, began=start, ended=start + 2.0, more=False)
    assert meter.plain_step([Item(50)]).seconds == pytest.approx(2.0, rel=0.05)


def step_took(costs: MeasuredCosts, kind: int, batch: int, times: float) -> None:
    """A whole step took so many times the sum of its parts."""
    if kind == PLAIN:
        parts = costs.target_seconds(batch, 100 * batch) + costs.sample_seconds(batch, 0)
        costs.observe_plain(batch, 100 * batch, times * parts)
    else:
        costs.observe_step(kind, batch, times, costs.whole_step(kind, batch))


def test_predictions_that_are_wrong_for_some_trees_are_corrected_for_them_alone():
    costs = MeasuredCosts(CPU)
    costs.observe_step(2, 1, 60.0, 1.0)  # its first time
    assert costs.whole_step(2, 1) < 1.05
    for _ in range(300):
        for kind, truth in ((PLAIN, 1.0), (1, 1.2)):
            step_took(costs, kind, 1, truth)
    assert costs.whole_step(1, 1) / costs.whole_step(PLAIN, 1) == pytest.approx(1.2, abs=0.06)
    assert costs.whole_step(2, 1) < 1.2


@pytest.mark.parametrize("first", [1.0, 8.0], ids=["later", "the first too"])
def test_single_steps_that_stall_are_no_steps_of_their_kind(first: float):
    """Once in five steps: a step of a size that is met for the first time, or a machine that is busy."""
    costs = MeasuredCosts(CPU)
    for step in range(60):
        truth = first if step == 0 else 8.0 if step % 5 == 4 else 1.0
        step_took(costs, PLAIN, 4, truth)
    assert costs.whole_step(PLAIN, 4) == pytest.approx(1.0, abs=0.03)
    for _ in range(60):
        step_took(costs, PLAIN, 4, 1.3)
    assert costs.whole_step(PLAIN, 4) == pytest.approx(1.3, abs=0.03), "what stays is learned"


def test_where_only_trees_are_stepped_plain_steps_do_not_seem_slower():
    costs = MeasuredCosts(CPU)
    for _ in range(20):
        step_took(costs, PLAIN, 4, 1.0)
    for _ in range(3000):
        step_took(costs, 1, 4, 1.3)
    assert costs.whole_step(PLAIN, 4) == pytest.approx(1.0, abs=0.01)
    assert costs.whole_step(PLAIN, 1) == pytest.approx(1.0, abs=0.01)
    assert costs.whole_step(1, 4) == pytest.approx(1.3, abs=0.03)


def test_a_table_that_learns_from_trees_does_not_make_plain_steps_seem_slower():
    """Until a plain step says so, too."""
    table = CostTable(Surface((1, 8, 64), (256, 4096), [[0.01, 0.012], [0.012, 0.014], [0.02, 0.03]]))
    costs = MeasuredCosts(table)

    def plain() -> float:
        parts = costs.target_seconds(8, 800) + costs.sample_seconds(8, 0)
        return costs.whole_step(PLAIN, 8) * parts

    for _ in range(40):
        costs.observe_plain(8, 800, 0.015)
    assert plain() == pytest.approx(0.015, rel=0.02)
    for _ in range(200):
        table.observe_target(12, 1200, 0.030)
        costs.observe_sample(8, 8, 0.001)
    assert table.target_seconds(8, 800) > 0.016, "the table itself cannot tell"
    assert plain() == pytest.approx(0.015, rel=0.02)
    for _ in range(40):
        costs.observe_plain(8, 800, 0.025)
    assert plain() == pytest.approx(0.025, rel=0.03)


def test_steps_with_candidates_are_told_apart_from_plain_ones_and_small_batches_from_large():
    costs = MeasuredCosts(CPU)
    for _ in range(40):
        for kind, batch, truth in ((PLAIN, 8, 0.9), (0, 8, 1.25), (1, 1, 1.0)):
            step_took(costs, kind, batch, truth)
    assert costs.whole_step(PLAIN, 9) == pytest.approx(0.9, abs=0.02)
    assert costs.whole_step(PLAIN, 1) == pytest.approx(0.9, abs=0.02), "nothing plainer was met"
    assert costs.whole_step(0, 8) == pytest.approx(1.25, abs=0.04)
    assert costs.whole_step(2, 8) == pytest.approx(1.25, abs=0.04), "more like it than a small batch"
    assert costs.whole_step(3, 1) == pytest.approx(1.0, abs=0.02)
