"""What plain decoding would have taken: from real steps without trees."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..cost.table import PLAIN
from .base import StepCosts

_NEWEST = 0.1  # weight of the newest measurement
_FIRST_CREDIT = 0.8  # the first probe at a batch size comes early
_EARLY_SHARE, _EARLY = 0.1, 4  # share of the steps that are probes at first, until there were so many


class BaselineProbes:
    """Which steps are run without trees to measure: a fixed share of those that would have had some."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit: dict[int, float] = {}  # by batch size, in steps
        self._made: Counter[int] = Counter()  # by batch size

    def is_due(self, batch: int) -> bool:
        """Call it once for every step with trees."""
        if self._share == 0:
            return False
        early = self._made[batch] < _EARLY
        credit = self._credit.get(batch, _FIRST_CREDIT) + max(self._share, _EARLY_SHARE if early else 0.0)
        due = credit >= 1
        self._credit[batch] = credit - due
        self._made[batch] += due
        return due


@dataclass(slots=True)
class _Usual:
    """Of plain steps of one batch size."""

    context: int  # KV rows that ``seconds`` are for
    seconds: float
    count: int


class Baseline:
    """Seconds of a plain decoding step, by batch size and context: measured, whole steps.

    Only how they change with the context, and with the batch where no step of that size was plain, is
    taken from the costs, as a ratio: what the costs learn from steps with trees does not move it.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._usual: dict[int, _Usual] = {}  # by batch size

    def observe(self, batch: int, context: int, seconds: float) -> None:
        """A step that gave ``batch`` requests a token each and did nothing else took this long."""
        usual = self._usual.get(batch)
        if usual is None:
            self._usual[batch] = _Usual(context, seconds, 1)
            return
        seconds *= self._predicted(batch, usual.context) / self._predicted(batch, context)
        usual.count += 1
        # The first ones count alike; later ones are held near the usual, so that a stall moves little.
        if usual.count > 3:
            seconds = min(max(seconds, 0.7 * usual.seconds), 1.4 * usual.seconds)
        usual.seconds += max(_NEWEST, 1 / usual.count) * (seconds - usual.seconds)

    def seconds(self, batch: int, context: int) -> float:
        """Of a step that gives ``batch`` requests with ``context`` KV rows in all a token each."""
        predicted = self._predicted(batch, context)
        if not self._usual:
            return predicted
        nearest = min(self._usual, key=lambda known: abs(known - batch))
        usual = self._usual[nearest]
        return usual.seconds * predicted / self._predicted(nearest, usual.context)

    def is_measured(self, batch: int) -> bool:
        """Whether a plain step of this batch size was seen."""
        return batch in self._usual

    def _predicted(self, batch: int, context: int) -> float:
        parts = self._costs.target_seconds(batch, context) + self._costs.sample_seconds(batch, 0)
        return parts * self._costs.whole_step(PLAIN, batch)
