"""What plain decoding would have taken: from real steps without trees."""

from __future__ import annotations

from dataclasses import dataclass

from .base import StepCosts

_NEWEST = 0.1  # weight of the newest measurement
_FIRST_CREDIT = 0.75  # the first probe at a batch size comes early


class BaselineProbes:
    """Which steps are run without trees to measure: a fixed share of those that would have had some."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit: dict[int, float] = {}  # by batch size, in steps

    def is_due(self, batch: int) -> bool:
        """Call it once for every step with trees."""
        credit = self._credit.get(batch, _FIRST_CREDIT) + self._share
        due = self._share > 0 and credit >= 1
        self._credit[batch] = credit - due
        return due


@dataclass(slots=True)
class _Pace:
    ratio: float  # measured over predicted
    count: int


class Baseline:
    """Seconds of a plain decoding step, by batch size and context.

    The cost table says how it changes with the context; how its prediction, which is of the models
    alone, compares to whole steps is measured for every batch size.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._paces: dict[int, _Pace] = {}

    def observe(self, batch: int, context: int, seconds: float) -> None:
        """A step that gave ``batch`` requests a token each and did nothing else took this long."""
        ratio = seconds / self._predicted(batch, context)
        pace = self._paces.get(batch)
        if pace is None:
            self._paces[batch] = _Pace(ratio, 1)
            return
        pace.count += 1
        # The first ones count alike; later ones are held near the usual, so that a stall moves little.
        if pace.count > 3:
            ratio = min(max(ratio, 0.7 * pace.ratio), 1.4 * pace.ratio)
        pace.ratio += max(_NEWEST, 1 / pace.count) * (ratio - pace.ratio)

    def seconds(self, batch: int, context: int) -> float:
        """Of a step that gives ``batch`` requests with ``context`` KV rows in all a token each."""
        return self._ratio(batch) * self._predicted(batch, context)

    def is_measured(self, batch: int) -> bool:
        """Whether a plain step of this batch size was seen."""
        return batch in self._paces

    def _predicted(self, batch: int, context: int) -> float:
        return self._costs.target_seconds(batch, context) + self._costs.sample_seconds(batch, 0)

    def _ratio(self, batch: int) -> float:
        if not self._paces:
            return 1.0
        return self._paces[min(self._paces, key=lambda known: abs(known - batch))].ratio
