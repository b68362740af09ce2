"""Running rates: near the truth after a while, near the prior before, and quick to follow a change."""

from __future__ import annotations

import random

import pytest

from resispec.engine.budget.acceptance import Acceptance, expected_tokens, kept_share, level_views
from resispec.engine.tree import plan_shape


def kept(rng: random.Random, levels, rates) -> int:
    """A path's length, drawn from the model that the rates are of."""
    for depth, level in enumerate(levels):
        if rng.random() >= level.coverage * kept_share(rates[depth], level.tries):
            return depth
    return len(levels)


@pytest.mark.parametrize("greedy", [False, True])
def test_rates_are_found_through_any_shape(greedy):
    rng = random.Random(1)
    truth = (0.7, 0.5, 0.4)
    for nodes, depth in ((1, 1), (3, 3), (4, 2), (12, 3)):
        levels = level_views(plan_shape(nodes, depth, greedy=greedy), greedy=greedy)
        acceptance = Acceptance(memory=3000.0, prior_weight=4.0)
        for _ in range(12000):
            acceptance.observe(levels, kept(rng, levels, truth))
        for level, rate in enumerate(truth[:depth]):
            assert acceptance.rate(level) == pytest.approx(rate, abs=0.06), (nodes, depth, level)


def test_a_prediction_is_the_mean_of_what_is_kept():
    rng = random.Random(2)
    rates = (0.8, 0.6, 0.5)
    levels = level_views(plan_shape(9, 3, greedy=False), greedy=False)
    total = sum(kept(rng, levels, rates) for _ in range(20000))
    assert total / 20000 == pytest.approx(expected_tokens(levels, rates), abs=0.03)


def test_a_new_request_begins_with_the_server_and_leaves_it_for_its_own():
    server = Acceptance(memory=500.0, prior_weight=8.0)
    chain = level_views(plan_shape(2, 2, greedy=False), greedy=False)
    for _ in range(300):
        server.observe(chain, 2)
    request = Acceptance(memory=24.0, prior_weight=6.0, prior=server)
    assert request.rate(0) == pytest.approx(server.rate(0)) == pytest.approx(0.97, abs=0.02)
    for _ in range(40):
        request.observe(chain, 0)
    assert request.rate(0) < 0.35
    assert server.rate(0) > 0.9


def test_depths_never_tried_are_no_better_than_the_one_above():
    acceptance = Acceptance(memory=24.0, prior_weight=6.0, default_rate=0.9)
    single = level_views(plan_shape(1, 1, greedy=False), greedy=False)
    for _ in range(50):
        acceptance.observe(single, 0)
    assert acceptance.rates(4) == (acceptance.rate(0),) * 4
