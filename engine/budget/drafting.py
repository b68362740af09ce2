"""What drafting for one request means: its tree in a step's load, and what its draft has missed."""

from __future__ import annotations

from .acceptance import expected_tokens
from .base import Choice, Off, TreeBudget, View
from .ladder import kind_of, levels_of, shape_of
from .plan import Load

CATCH_UP = 64  # tokens a draft runs in one step for a request that is to get trees again
_STEPS_ON = 8  # steps that a request has trees for, once it has some
STEADY_CATCH_UP = 2  # tokens it runs before each tree once it keeps up: about what a step gives


def usual_catch_up(view: View) -> int:
    """Tokens that the draft has to run before a tree: about those that the last step gave, once it keeps up.

    What it has missed until now, it reads once, before the first tree; that is spread over the steps that
    trees are likely to go on for. Among many requests it is a step of its own.
    """
    missed = min(view.behind, CATCH_UP)
    if view.falls_behind:
        return missed
    steady = min(missed, STEADY_CATCH_UP)
    return steady + (missed - steady) // _STEPS_ON


def settle(load: Load, view: View, budget: TreeBudget) -> None:
    """Count a tree that is not up for choice."""
    kind = kind_of(view)
    shape = shape_of(kind, budget)
    load.add_tree(shape, behind=usual_catch_up(view), length=view.length)
    rates = view.history.acceptance.rates(shape.depth)
    load.tokens += expected_tokens(levels_of(shape, greedy=kind.greedy), rates)


def with_catch_up(view: View, budget: TreeBudget) -> Choice:
    """The tree, or first, over some steps, what the draft has missed."""
    if view.behind > CATCH_UP:
        return Choice(None, Off.CATCH_UP, catch_up=CATCH_UP)
    return Choice(budget)
