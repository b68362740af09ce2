"""The choice of trees: never worse than none by its own prediction, and less where more is going on."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec.engine.budget.acceptance import Acceptance
from resispec.engine.budget.base import StepCosts, View
from resispec.engine.budget.costs import ReferenceCosts, reference_costs
from resispec.engine.budget.history import History
from resispec.engine.budget.ladder import Ladder, kind_of, ladders, shape_of
from resispec.engine.budget.plan import Bid, Load, choose, step_seconds
from resispec.engine.drawing import Drawing
from resispec.engine.request import SpeculationMode

CPU, GPU = reference_costs("cpu"), reference_costs("cuda")


def view(rate: float, max_nodes: int = 16, max_depth: int = 4, *, greedy: bool = False) -> View:
    acceptance = Acceptance(memory=24.0, prior_weight=6.0, default_rate=rate)
    return View(
        history=History(acceptance, greedy=greedy),
        mode=SpeculationMode.AUTO,
        is_free=True,
        max_nodes=max_nodes,
        max_depth=max_depth,
        off=None,
        length=100,
        behind=2,
        drawing=Drawing.HEAD_AND_TAIL,
        shares_nodes=True,
    )


def plan_of(rates: list[float], costs: StepCosts, prompt: int = 0, margin: float = 0.0):
    views = [view(rate) for rate in rates]
    bids = [Bid(ladders(one), one.length, one.behind) for one in views]
    count = len(rates)
    return choose(bids, Load(count + prompt, 100 * count, count, float(count)), costs, margin=margin)


costs_of_any_kind = st.builds(
    ReferenceCosts,
    row=st.floats(0, 0.5),
    free_rows=st.integers(0, 64),
    level=st.floats(1e-3, 2),
    node=st.floats(0, 0.2),
    trees=st.floats(0, 0.5),
)
rates_of_a_batch = st.lists(st.floats(0, 0.98), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(rates_of_a_batch, costs_of_any_kind, st.integers(0, 300), st.sampled_from([0.0, 0.1]))
def test_no_plan_is_predicted_to_be_worse_than_plain(rates, costs, prompt, margin):
    plan = plan_of(rates, costs, prompt, margin)
    assert math.isfinite(plan.seconds)
    if any(plan.rungs):
        assert plan.gain >= (1 + margin) * (1 - 1e-12)
        assert plan.tokens > len(rates)
    else:
        assert (plan.gain, plan.seconds) == (1.0, plan.plain_seconds)


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 0.98), costs_of_any_kind, st.integers(0, 300))
def test_one_request_gets_what_it_would_beside_others_that_ask_for_nothing(rate, costs, prompt):
    one = view(rate)
    bid, nothing = Bid(ladders(one), 100, 2), Bid((Ladder(()),) * 4, 100, 2)
    load = Load(2 + prompt, 200, 2, 2.0)
    alone, beside = choose([bid], load, costs), choose([bid, nothing], load, costs)
    assert beside.rungs == (*alone.rungs, None)
    assert replace(beside.load, tokens=0.0) == replace(alone.load, tokens=0.0)
    assert (beside.seconds, beside.tokens) == pytest.approx((alone.seconds, alone.tokens))


@settings(max_examples=150, deadline=None)
@given(rates_of_a_batch, costs_of_any_kind)
def test_a_plan_costs_what_its_trees_cost(rates, costs):
    plan = plan_of(rates, costs)
    rungs = [rung for rung in plan.rungs if rung]
    load = Load(len(rates), 100 * len(rates), len(rates), 0.0)
    load.rows += sum(rung.nodes for rung in rungs)
    load.expanded = sum(rung.expanded for rung in rungs)
    load.drafting, load.depth = len(rungs), max((rung.depth for rung in rungs), default=0)
    load.behind, load.draft_context = 2 * len(rungs), 100 * len(rungs)
    # The plan may have allowed for a level that no tree in it has in the end.
    assert step_seconds(load, costs) <= plan.seconds + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 0.98), st.sampled_from([CPU, GPU]))
def test_trees_do_not_grow_with_the_load(rate, costs):
    sizes = []
    for batch in (1, 2, 4, 8, 16, 32, 64):
        plan = plan_of([rate] * batch, costs)
        sizes.append(sum(rung.nodes for rung in plan.rungs if rung) / batch)
    for fewer, more in pairwise(sizes):
        assert more <= fewer * 1.15  # of many steps up, only some are looked at


@pytest.mark.parametrize("costs", [CPU, GPU])
def test_what_is_never_kept_is_not_drafted(costs):
    assert plan_of([0.0], costs).rungs == (None,)
    assert plan_of([0.0, 0.9], costs).rungs[0] is None


def test_a_good_draft_is_used_alone_and_deeper_on_a_gpu():
    [cpu], [gpu] = plan_of([0.8], CPU).rungs, plan_of([0.8], GPU).rungs
    assert cpu is not None
    assert gpu is not None
    assert gpu.nodes > cpu.nodes >= 2


def test_the_better_of_two_requests_gets_the_larger_tree():
    few = ReferenceCosts(row=0.1, free_rows=4, level=0.05, node=0.01, trees=0.02)
    low, high = plan_of([0.3, 0.9], few).rungs
    assert high is not None
    assert low is None or low.nodes < high.nodes


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0, 0.98),
    st.integers(1, 40),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(list(Drawing)),
)
def test_ladders_rise_within_their_limits_and_are_worth_less_a_step(rate, nodes, depth, greedy, drawing):
    base = view(rate, nodes, depth, greedy=greedy)
    for levels, ladder in enumerate(ladders(base), start=1):
        before, slope = (0, 0.0), math.inf
        for rung in ladder.rungs:
            assert before[0] < rung.nodes <= nodes
            assert rung.depth <= levels
            shape = shape_of(kind_of(base), rung.budget)
            assert (shape.num_nodes, shape.num_expanded) == (rung.nodes, rung.expanded)
            now = (rung.tokens - before[1]) / (rung.nodes - before[0])
            assert 0 < now <= slope + 1e-12
            before, slope = (rung.nodes, rung.tokens), now
