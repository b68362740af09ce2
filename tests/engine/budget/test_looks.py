"""When known candidates are asked for, where nothing of them is taken."""

from __future__ import annotations

from resispec.engine.budget.looks import Looks


def asked(looks: Looks, batch: int, steps: int, taken_in: int | None = None) -> list[bool]:
    """Of every step, whether the sources were asked; they are believed in step ``taken_in``, if asked."""
    due = []
    for step in range(steps):
        due.append(looks.is_due(batch))
        looks.made(taken=due[-1] and step == taken_in)
    return due


def test_many_requests_are_asked_in_every_fourth_step_after_some_in_vain() -> None:
    assert asked(Looks(), 8, 20) == [True] * 9 + [False, False, False, True] * 2 + [False] * 3


def test_few_requests_are_always_asked() -> None:
    assert all(asked(Looks(), 3, 40))


def test_what_was_taken_has_every_step_looked_at_again() -> None:
    due = asked(Looks(), 8, 28, taken_in=16)
    assert due[9:17] == [False, False, False, True] * 2
    assert all(due[17:26])
