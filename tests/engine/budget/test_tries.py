"""What tries may cost: a share of the time, never saved up for several, less where they change nothing."""

from __future__ import annotations

import pytest

from resispec.engine.budget.tries import Tries

STEP = 0.05  # seconds of a step
TRY = 0.015


def spent(tries: Tries, steps: int, batch: int = 16, price: float = TRY) -> float:
    """Seconds of all tries in so many steps, if there is always something to try."""
    total = 0.0
    for _ in range(steps):
        tries.earn(batch, STEP)
        if tries.afford(price):
            tries.tried(batch)
            total += price
    return total


def test_tries_take_half_a_percent_at_the_most_and_less_the_longer_they_change_nothing() -> None:
    tries = Tries()
    early, late = spent(tries, 1000), spent(tries, 1000)
    assert late < early < 0.005 * 1000 * STEP
    assert spent(tries, 10_000) == pytest.approx(0.001 * 10_000 * STEP, rel=0.1), "but they never end"


def test_trees_that_come_of_them_begin_the_count_again() -> None:
    tries = Tries()
    spent(tries, 2000)
    least = tries.share(16)
    tries.planned(16, trees=False)
    assert tries.share(16) == least
    tries.planned(16, trees=True)
    assert tries.share(16) == Tries().share(16) > least


def test_loads_of_other_sizes_are_counted_apart() -> None:
    tries = Tries()
    spent(tries, 2000)
    assert tries.share(31) < tries.share(1) == Tries().share(1)


def test_no_more_is_kept_than_one_try_costs() -> None:
    """Whatever was saved while a single request had trees that nobody had to try."""
    tries = Tries()
    tries.earn(1, 10_000.0)
    assert spent(tries, 1) == TRY
    assert spent(tries, 10) == 0.0


def test_what_is_dear_is_tried_too_after_a_while() -> None:
    assert spent(Tries(), 2000, price=10 * TRY) > 0


def test_what_a_draft_has_missed_is_read_from_a_purse_of_its_own() -> None:
    """It fills at the full share, however many tries were in vain, and for so many pieces at the most."""
    tries = Tries()
    spent(tries, 2000)
    piece = 0.005 * STEP
    while tries.afford_reading(piece):
        pass
    for _ in range(100):
        tries.earn(16, STEP)
        assert tries.afford_reading(piece)
        assert not tries.afford_reading(piece)
    tries.earn(1, 10_000.0)
    bought = 0
    while tries.afford_reading(piece):
        bought += 1
    assert 15 <= bought <= 16, "as roundings fall"


def test_kept_tries_pay_back() -> None:
    tries = Tries()
    tries.earn(1, TRY / 0.005)
    assert tries.afford(TRY)
    assert not tries.afford(TRY)
    tries.repay(TRY)
    assert tries.afford(TRY)
