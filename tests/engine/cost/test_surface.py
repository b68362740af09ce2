"""Costs over tokens and context: positive, rising, linear between the knots."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from resispec.engine.cost.surface import Surface

TOKENS, CONTEXT = (1, 2, 4, 8), (256, 1024, 4096)


def grid() -> Surface:
    return Surface(TOKENS, CONTEXT, [[0.010 + 0.001 * t + 1e-7 * t * c for c in CONTEXT] for t in TOKENS])


def test_knots_are_met_and_what_is_between_lies_on_a_line() -> None:
    surface = grid()
    for tokens in TOKENS:
        for context in CONTEXT:
            assert surface.at(tokens, context) == pytest.approx(
                0.010 + 0.001 * tokens + 1e-7 * tokens * context
            )
    assert surface.at(6, 256) == pytest.approx((surface.at(4, 256) + surface.at(8, 256)) / 2)
    assert surface.at(4, 640) == pytest.approx((surface.at(4, 256) + surface.at(4, 1024)) / 2)


def test_below_the_first_knot_it_is_flat_and_beyond_the_last_it_rises_on() -> None:
    surface = grid()
    assert surface.at(1, 0) == surface.at(1, 256)
    assert surface.at(16, 256) == pytest.approx(surface.at(8, 256) + 2 * 0.004 + 2 * 4 * 256e-7)
    assert surface.at(1, 8192) == pytest.approx(0.011 + 8192e-7)


def rises(surface: Surface) -> bool:
    sizes, contexts = (1, 1.5, 2, 3, 4, 7, 8, 9, 30), (0, 256, 300, 1024, 2000, 4096, 5000, 90000)
    by_tokens = all(
        surface.at(a, c) <= surface.at(b, c) + 1e-12 for c in contexts for a, b in pairwise(sizes)
    )
    by_context = all(
        surface.at(t, a) <= surface.at(t, b) + 1e-12 for t in sizes for a, b in pairwise(contexts)
    )
    return by_tokens and by_context and surface.at(1, 0) > 0


def test_it_rises_whatever_was_measured_and_whatever_is_learned() -> None:
    draws = random.Random(1)
    for _ in range(50):
        surface = Surface(TOKENS, CONTEXT, [[draws.uniform(0.001, 1) for _ in CONTEXT] for _ in TOKENS])
        assert rises(surface)
        for _ in range(100):
            surface.shift(draws.choice([1, 3, 5, 8, 20]), draws.uniform(0, 9000), draws.uniform(-1, 1))
        assert rises(surface)


def test_a_shift_moves_what_is_near_by_its_weight_and_nothing_else() -> None:
    surface, before = grid(), grid()
    surface.shift(4, 1024, 0.01)
    assert surface.at(4, 1024) == pytest.approx(before.at(4, 1024) * 1.01005, rel=1e-6)
    for tokens, context in ((1, 256), (2, 1024), (8, 4096), (4, 256)):
        assert surface.at(tokens, context) == before.at(tokens, context)
    surface.shift(4, 1024, 1.0)
    assert surface.at(8, 4096) >= surface.at(4, 1024)
    surface.shift(4, 1024, -3.0)
    assert surface.at(1, 256) <= surface.at(4, 1024)


def test_one_knot_is_a_constant() -> None:
    surface = Surface((1,), (16,), [[0.5]])
    assert {surface.at(1, 1), surface.at(100, 1000)} == {0.5}
    surface.shift(100, 1000, 0.1)
    assert surface.at(1, 1) == pytest.approx(0.5525855)


@pytest.mark.parametrize(
    ("tokens", "context", "seconds"),
    [
        ((), (1,), []),
        ((2, 1), (1,), [[1.0], [1.0]]),
        ((1, 2), (5, 5), [[1.0, 1.0], [1.0, 1.0]]),
        ((1, 2), (1,), [[1.0]]),
        ((1, 2), (1,), [[1.0, 2.0], [1.0, 2.0]]),
        ((1, 2), (1,), [[1.0], [0.0]]),
        ((1, 2), (1,), [[1.0], [float("nan")]]),
    ],
)
def test_what_is_no_grid_is_refused(tokens, context, seconds) -> None:
    with pytest.raises(ValueError, match="must"):
        Surface(tokens, context, seconds)
