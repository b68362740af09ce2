"""The baseline: what plain decoding takes, from plain steps among others, through noise and stalls."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from resispec.engine.budget.baseline import Baseline, BaselineProbes
from resispec.engine.budget.costs import MeasuredCosts, reference_costs
from resispec.engine.budget.meter import SpeedMeter
from resispec.engine.cost.surface import Surface
from resispec.engine.cost.table import PLAIN, CostTable
from resispec.engine.known_tree import NOTHING_KNOWN
from resispec.engine.request import SpeculationMode
from resispec.engine.tree import CandidateTree, plan_shape

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


def test_probes_take_their_share_of_each_batch_size_in_runs_of_three():
    probes = BaselineProbes(0.02)
    due = [probes.is_due(1 + step % 2) for step in range(2000)]
    for own in (due[::2], due[1::2]):
        runs = "".join("x" if one else "." for one in own).strip(".").split(".")
        assert {run for run in runs if run} == {"xxx"}, "only what comes behind a plain step is measured"
        assert own.index(True) < 5, "the first ones come early"
        assert sum(own[:20]) == 6, "and some more soon after them"
        assert sum(own[20:120]) <= 3
        assert sum(own[200:]) == pytest.approx(0.02 * 800, abs=3)
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
    def __init__(self, length, num_tokens=1, decodes=True, tree=None, mode=SpeculationMode.AUTO):
        self.length, self.num_tokens, self.decodes, self.tree = length, num_tokens, decodes, tree
        self.catch_up = 0
        self.sequence = SimpleNamespace(mode=mode)


TREE = CandidateTree(plan_shape(4, 2, greedy=True), NOTHING_KNOWN)


class Steps:
    """A meter and a clock: steps that take as long as they are told."""

    def __init__(self) -> None:
        self.meter = SpeedMeter(MeasuredCosts(CPU))
        self.now = 0.0

    def step(self, seconds: float, *items: Item, choosing: float = 0.0, more: bool = True) -> None:
        """seconds: until the next one may begin."""
        step = self.meter.plain_step(items)
        self.meter.finish(step, 0.001, choosing, began=self.now, more=more)
        self.now += seconds

    def plain_seconds(self) -> float:
        return self.meter.plain_step([Item(50)]).seconds


def test_only_plain_steps_are_the_baseline():
    steps = Steps()
    two = Item(50), Item(60)
    for _ in range(20):
        steps.step(1.0, *two)
    measured = steps.meter.plain_step(two)
    assert measured.is_plain
    assert measured.is_measured
    assert measured.seconds == pytest.approx(1.0, rel=0.01)
    prompt = Item(32, 32, decodes=False)
    for _ in range(20):
        steps.step(5.0, *two, prompt)
    with_prompt = steps.meter.plain_step([*two, prompt])
    assert not with_prompt.is_plain
    assert with_prompt.prompt_seconds > 0
    assert with_prompt.seconds == pytest.approx(1.0, rel=0.01)


def test_behind_a_step_with_trees_a_plain_one_tells_nothing():
    steps = Steps()
    for _ in range(12):
        steps.step(3.0, Item(50, tree=TREE))
        steps.step(1.3, Item(50))  # what trees need is in the caches
        steps.step(1.0, Item(50))
        steps.step(1.0, Item(50))
    assert steps.plain_seconds() == pytest.approx(1.0, rel=0.01)


def test_what_a_step_leaves_to_do_is_its_own():
    """A step with trees goes on once its tokens are known, and what came of it is sent: none of that is
    the plain step's behind it.
    """
    steps = Steps()
    for _ in range(12):
        steps.step(3.0 + 0.5, Item(50, tree=TREE))
        steps.step(1.0 + 0.25, Item(50))
        steps.step(1.0 + 0.25, Item(50))
    assert steps.plain_seconds() == pytest.approx(1.25, rel=0.01)


def test_choosing_trees_is_no_part_of_plain_decoding():
    steps = Steps()
    for _ in range(20):
        steps.step(1.1, Item(50), choosing=0.1)
    assert steps.plain_seconds() == pytest.approx(1.0, rel=0.01)


def test_a_pause_is_no_step_and_neither_is_one_that_failed():
    steps = Steps()
    for _ in range(12):
        steps.step(2.0, Item(50))
        steps.step(2.0, Item(50))
        steps.step(2.0, Item(50), more=False)
        steps.now += 100.0
        steps.step(2.0, Item(50))
        steps.step(2.0, Item(50))
        steps.meter.forget()
        steps.now += 50.0
    assert steps.plain_seconds() == pytest.approx(2.0, rel=0.01)


def test_of_steps_in_which_nobody_wants_trees_some_are_looked_at():
    steps = Steps()
    without, free = [Item(50, mode=SpeculationMode.OFF)], Item(50, mode=SpeculationMode.AUTO)
    looked = []
    for _ in range(320):
        looked.append(steps.meter.looks_at(without))
        if looked[-1]:
            steps.step(1.0, *without)
        else:
            steps.now += 7.0  # were one to end with what comes behind it, this would be in it
    assert looked[0], "the first"
    assert 20 <= sum(looked) <= 60
    assert steps.plain_seconds() == pytest.approx(1.0, rel=0.01)
    assert all(steps.meter.looks_at([*without, free]) for _ in range(100))


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
