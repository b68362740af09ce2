"""The controller in simulated conditions: it follows the text, spends little on bad drafts, settles down."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from resispec.engine.budget.acceptance import kept_share
from resispec.engine.budget.base import Off, TreeBudget, View
from resispec.engine.budget.controller import Controller, ControllerSettings
from resispec.engine.budget.costs import MeasuredCosts, ReferenceCosts, reference_costs
from resispec.engine.budget.drafting import CATCH_UP, usual_catch_up
from resispec.engine.budget.ladder import kind_of, levels_of, shape_of
from resispec.engine.budget.plan import Load, step_seconds
from resispec.engine.budget.simulation import Regime, Scenario, simulate
from resispec.engine.cost.table import PLAIN, LearnedCosts
from resispec.engine.drawing import Drawing
from resispec.engine.request import SamplingParams, SpeculationMode

CPU, GPU = reference_costs("cpu"), reference_costs("cuda")
GOOD, FAIR, BAD = Regime((0.7, 0.65, 0.6), 1), Regime((0.45, 0.4, 0.35), 1), Regime((0.02,), 1)


@pytest.mark.parametrize("costs", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("batch", [1, 4, 16, 64])
@pytest.mark.parametrize("regime", [GOOD, FAIR, BAD], ids=["good", "fair", "bad"])
def test_it_is_never_much_slower_than_plain(costs, batch, regime):
    assert simulate(Scenario((regime,), batch, tokens=200), costs).speedup > 0.97


@pytest.mark.parametrize(("costs", "batch"), [(CPU, 1), (CPU, 4), (CPU, 16), (GPU, 1), (GPU, 16), (GPU, 64)])
@pytest.mark.parametrize("regime", [GOOD, FAIR], ids=["good", "fair"])
def test_it_is_about_as_good_as_the_best_fixed_tree(costs, batch, regime):
    auto = simulate(Scenario((regime,), batch, tokens=400, rounds=1), costs)
    fixed = [
        simulate(
            Scenario((regime,), batch, 400, 1, max_nodes=n, max_depth=d, mode=SpeculationMode.FIXED), costs
        )
        for n, d in ((1, 1), (2, 2), (4, 2), (8, 3), (16, 4))
    ]
    best = max(1.0, *(outcome.speedup for outcome in fixed))
    assert auto.speedup > 0.95 * best


def test_a_bad_draft_is_given_up_and_a_text_that_turns_good_is_noticed():
    turning = (Regime((0.02,), 300), Regime((0.9, 0.9), 1))
    outcome = simulate(Scenario(turning, 1, tokens=1500, rounds=1), CPU)
    early, late = outcome.sizes[60:280], outcome.sizes[-100:]
    assert sum(early) / len(early) < 0.2
    assert sum(late) / len(late) > 1.5
    assert outcome.speedup > 1.2


def test_what_is_off_is_simulated_as_plain_decoding():
    outcome = simulate(Scenario((GOOD,), 4, tokens=50, mode=SpeculationMode.OFF), CPU)
    assert outcome.speedup == pytest.approx(1.0)
    assert not any(outcome.sizes)


def test_it_settles():
    """Where trees are worth about what they cost, a request does not flicker between them and none."""
    for rate in (0.25, 0.3, 0.35, 0.4):
        outcome = simulate(Scenario((Regime((rate,), 1),), 1, tokens=2000, rounds=1), CPU)
        assert outcome.switches < 200, rate


def test_a_new_request_begins_with_what_the_server_knows():
    controller = Controller(ControllerSettings(8, 0.0), CPU, CPU)
    [first] = views_of(controller, 1)
    [choice] = controller.plan([first], 0)
    for _ in range(300):
        controller.observe(first.history, shape(first, choice.budget), 0)
    second = views_of(controller, 1)[0]
    controller.plan([second], 0)
    assert not second.history.is_on


def test_a_new_server_looks_before_it_decides_against_trees():
    """Among 16 requests a draft that is right half of the time would not quite pay."""
    controller = Controller(ControllerSettings(8, 0.0), CPU, CPU)
    tested = 0
    for _ in range(12):
        batch = views_of(controller, 16)
        for view, choice in zip(batch, controller.plan(batch, 0), strict=True):
            if choice.budget is not None:
                controller.observe(view.history, shape(view, choice.budget), 0)
                tested += 1
    assert 8 <= tested <= 64
    assert not any(choice.budget for choice in controller.plan(views_of(controller, 16), 0))


def test_a_seed_is_decided_on_from_its_own_history_only():
    """The same history gives the same trees, whatever costs were measured and whoever else runs."""
    chosen = []
    for table, others in ((CPU, 0), (GPU, 0), (CPU, 7)):
        controller = Controller(ControllerSettings(8, 0.5), MeasuredCosts(table), CPU)
        [view] = views_of(controller, 1, seed=5)
        trees = []
        for step in range(200):
            crowd = views_of(controller, others)
            choice = controller.plan([view, *crowd], 50 * others)[0]
            trees.append(choice)
            if choice.budget is not None:
                controller.observe(view.history, shape(view, choice.budget), int(step % 3 == 0 and step < 80))
        chosen.append(trees)
    assert chosen[0] == chosen[1] == chosen[2]
    assert {choice.off for choice in chosen[0]} == {None, Off.NO_GAIN}


def test_a_step_that_was_planned_and_not_run_changes_nothing():
    """A request may be preempted between the two, and is asked about again when it has its rows back."""
    chosen = []
    for times in (1, 3):
        controller = Controller(ControllerSettings(8, 0.0), CPU, CPU)
        [view] = views_of(controller, 1, seed=5)
        trees = []
        for step in range(200):
            view = replace(view, length=100 + step)
            choice, *again = [controller.plan([view], 0)[0] for _ in range(times)]
            assert all(other == choice for other in [*again, controller.late(view)])
            trees.append(choice)
            if choice.budget is not None:
                controller.observe(view.history, shape(view, choice.budget), int(step % 5 == 0 and step > 90))
        chosen.append(trees)
    assert chosen[0] == chosen[1]
    assert {choice.off for choice in chosen[0]} == {None, Off.NO_GAIN}


def test_what_a_draft_has_missed_is_read_in_pieces():
    controller = Controller(ControllerSettings(8, 0.0), CPU, CPU)
    [view] = views_of(controller, 1, behind=1000)
    [choice] = controller.plan([view], 0)
    assert (choice.budget, choice.off) == (None, Off.CATCH_UP)
    assert 0 < choice.catch_up < 100
    [seeded] = views_of(controller, 1, seed=3, behind=1000)
    [choice] = controller.plan([seeded], 0)
    assert choice.budget is not None


def test_the_fixed_mode_shares_the_steps_candidates():
    controller = Controller(ControllerSettings(8, 0.0), CPU, CPU)
    fixed = views_of(controller, 2, mode=SpeculationMode.FIXED)
    assert [choice.budget for choice in controller.plan(fixed, 0)] == [TreeBudget(4, 4)] * 2
    many = views_of(controller, 9, mode=SpeculationMode.FIXED)
    assert [choice.off for choice in controller.plan(many, 0)] == [Off.LOAD] * 9


def test_a_share_of_the_steps_measures_plain_decoding_but_never_a_seeds():
    controller = Controller(ControllerSettings(64, 0.25), CPU, CPU)
    free = views_of(controller, 2, mode=SpeculationMode.FIXED)
    plain = [controller.plan(free, 0)[0].off is Off.BASELINE for _ in range(100)]
    assert 24 <= sum(plain) <= 28, "a few of them sooner"
    assert not any(controller.plan(free, 10)[0].off for _ in range(50)), "a prompt is in the way"
    seeded = views_of(controller, 1, mode=SpeculationMode.FIXED, seed=1)
    assert all(choice.budget for _ in range(50) for choice in controller.plan([*free, *seeded], 0))


def test_a_draft_that_falls_behind_again_and_again_is_charged_for_all_of_it():
    """What a grammar forces is missed by the draft in every step; what it slept through, once."""
    [view] = views_of(Controller(ControllerSettings(64, 0.0), CPU, CPU), 1, behind=30)
    assert usual_catch_up(replace(view, behind=2)) == 2
    assert 2 < usual_catch_up(view) < 8
    assert usual_catch_up(replace(view, falls_behind=True)) == 30
    assert usual_catch_up(replace(view, behind=1000, falls_behind=True)) == CATCH_UP


@pytest.mark.parametrize("believed", [1.0, 1.45], ids=["rows", "rows and plain steps"])
def test_costs_that_were_learned_on_a_busy_machine_are_unlearned(believed: float):
    """Rows seem to cost a third of what they do, and plain steps to take longer: trees seem to pay."""
    truth = ReferenceCosts(row=0.06, free_rows=4, level=0.075, node=0.01, trees=0.035)
    table = ReferenceCosts(row=0.02, free_rows=4, level=0.075, node=0.01, trees=0.035)
    costs = MeasuredCosts(table, LearnedCosts(0.01, 0.035, ((PLAIN, 5, believed),)))
    controller = Controller(ControllerSettings(64, 0.01), costs, CPU)
    views = views_of(controller, 16)
    rng = random.Random(1)
    plain = step_seconds(Load(16, 1600, 16, 16.0), truth)
    lost = []  # of every step's time, over what plain decoding would take for its tokens
    for _ in range(400):
        load, tokens = Load(16, 1600, 16, 16.0), 16
        for view, choice in zip(views, controller.plan(views, 0), strict=True):
            if choice.budget is None:
                continue
            grown = shape(view, choice.budget)
            load.add_tree(grown, behind=1, length=view.length)
            kept = 0
            for level in levels_of(grown, greedy=False):
                if rng.random() >= level.coverage * kept_share(0.4, level.tries):
                    break
                kept += 1
            tokens += kept
            controller.observe(view.history, grown, kept)
        paid, predicted = step_seconds(load, truth), step_seconds(load, costs)
        if load.kind == PLAIN:
            costs.observe_plain(16, 1600, paid)
        else:
            costs.observe_step(load.kind, 16, paid, predicted)
        lost.append(paid - plain * tokens / 16)
    assert sum(lost[:100]) / (100 * plain) < 0.025
    assert sum(lost[100:]) / (300 * plain) < 0.01


def views_of(controller, count, seed=None, behind=1, mode=SpeculationMode.AUTO):
    return [
        View(
            history=controller.history("resispec", SamplingParams(seed=seed)),
            mode=mode,
            is_free=seed is None,
            max_nodes=16,
            max_depth=4,
            off=None,
            length=100,
            behind=behind,
            drawing=Drawing.HEAD_AND_TAIL,
            shares_nodes=True,
        )
        for _ in range(count)
    ]


def shape(view, budget):
    return shape_of(kind_of(view), budget)


def test_trees_that_would_not_pay_for_reading_all_prompts_are_not_begun():
    """Of many requests whose prompts the draft has not read, that takes as long as a step."""
    costs = ReferenceCosts(row=0.03, free_rows=4, level=0.075, node=0.01, trees=0.035)

    def drafted(behind: int) -> int:
        controller = Controller(ControllerSettings(64, 0.0), costs, CPU)
        known = views_of(controller, 1)[0].history.acceptance.prior
        assert known is not None
        tree = TreeBudget(4, 2)
        for index in range(200):
            levels = levels_of(shape(views_of(controller, 1)[0], tree), greedy=False)
            known.observe(levels, (0, 1, 1, 2)[index % 4])
        views = views_of(controller, 12, behind=behind)
        return sum(choice.budget is not None for choice in controller.plan(views, 0))

    assert drafted(2) > 0
    assert drafted(64) == 0
