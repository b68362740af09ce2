"""Candidates that are known beforehand: which are worth verifying, and what to draft beside them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..cost.table import PLAIN
from .base import Choice, Off, StepCosts, TreeBudget, View
from .drafting import settle, with_catch_up
from .ladder import Rung
from .plan import Load, Plan, step_seconds

_GRAIN = 4  # candidates over which the price of one is measured
_TOKENS = 1.5  # what a step gives a request, for the price of a candidate
_MARGIN = 0.05  # share by which a step with candidates must be better than one without: chances are guesses


def known_price(costs: StepCosts, batch: int, length: int) -> float:
    """The chance that one more candidate must have in a step with candidates of ``batch`` requests.

    It pays if the tokens it is expected to give, over those of the step without it, exceed its share of
    the step's time.
    """
    rows, context = 2 * batch, batch * length
    step = costs.target_seconds(rows, context) + costs.sample_seconds(batch, batch)
    more = costs.target_seconds(rows + _GRAIN, context) + costs.sample_seconds(batch, batch + _GRAIN)
    return (more - step) / _GRAIN / step * batch * _TOKENS


def choose_known(
    views: Sequence[View], choices: Sequence[Choice], load: Load, costs: StepCosts
) -> list[Choice]:
    """Which requests have what is known verified, of those that share what the machine can do.

    Candidates cost a step something by being there at all, which those of all requests pay together: so
    the best come first, and as many are taken as give the most tokens a second.

    load: the step without them, and without the trees of those that share; is changed.
    """
    chosen = list(choices)
    offering = [index for index, view in enumerate(views) if view.known.num_nodes and view.is_shared]
    if not offering:
        return chosen
    for view, choice in zip(views, choices, strict=True):
        if choice.budget is not None and view.is_shared:
            settle(load, view, choice.budget)
    offering.sort(key=lambda index: -views[index].known.expected_tokens / views[index].known.num_nodes)
    best, count = load.tokens / step_seconds(load, costs), 0
    if load.kind == PLAIN:
        best *= 1.0 + _MARGIN
    for place, index in enumerate(offering, start=1):
        load.add_known(views[index].known)
        goodput = load.tokens / step_seconds(load, costs)
        if goodput > best:
            best, count = goodput, place
    for index in offering[count:]:
        choice = choices[index]
        off = Off.NO_GAIN if choice.budget is None and choice.off is None else choice.off
        chosen[index] = msgspec.structs.replace(choice, known=False, off=off)
    return chosen


def beside_known(view: View, rung: Rung, plan: Plan) -> Choice:
    """What a request drafts that was to have a tree, and has candidates that may do instead.

    What is drafted counts only where nothing that is known is kept; then it must be worth what the plan
    pays for a drafted token, where any token costs what it costs in this step.
    """
    known = view.known
    if not known.num_nodes:
        return with_catch_up(view, rung.budget)
    token = plan.seconds / (plan.tokens + known.expected_tokens)
    if view.room == 0 or (1.0 - known.first_chance) * token < plan.price:
        return Choice(None)
    return with_catch_up(view, TreeBudget(min(rung.budget.max_nodes, view.room), rung.budget.max_depth))
