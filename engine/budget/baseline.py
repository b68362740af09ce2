"""What plain decoding would have taken: from real steps without trees."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .base import StepCosts
from .plain import plain_parts

_NEWEST = 0.1  # weight of the newest measurement
_RUN = 3  # probes one behind the other: only what comes behind a plain step is measured
_FIRST_CREDIT = 0.8  # the first probe at a batch size comes early
_EARLY_SHARE, _EARLY = 0.5, 2 * _RUN  # share of the steps that are probes at first, until there were so many
_MOST_SHARE = 0.1  # of them later
_GIVEN_UP = 0.005  # of the tokens a second, for probes where trees gain little


class BaselineProbes:
    """Which steps are run without trees to measure: a share of those that would have had some, in short
    runs.

    The less trees gain, the less such a step costs, and the sooner an error in what is said of plain steps
    means that they lose: then more of them are run, as many as give up 0.5 % of the tokens a second.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit: dict[int, float] = {}  # by batch size, in steps; a run goes into debt
        self._left: dict[int, int] = {}  # by batch size: probes of a run that has begun
        self._made: Counter[int] = Counter()  # by magnitude of the batch

    def is_due(self, batch: int, gain: float = 1.0) -> bool:
        """Call it once for every step with trees. gain: in tokens a second that they promise; 1: unknown."""
        if self._share == 0:
            return False
        share = max(self._share, min(_MOST_SHARE, _GIVEN_UP / (gain - 1.0))) if gain > 1 else self._share
        if self._made[batch.bit_length()] < _EARLY:
            share = _EARLY_SHARE
        credit = self._credit.get(batch, _FIRST_CREDIT) + share
        left = self._left.get(batch, 0)
        if not left and credit >= 1:
            left = _RUN
        due = left > 0
        self._left[batch] = left - due
        self._credit[batch] = credit - due
        self._made[batch.bit_length()] += due
        return due


@dataclass(slots=True)
class _Ratio:
    """What plain steps of one batch size took over what was said of them."""

    value: float
    count: int


class Baseline:
    """Seconds of a plain decoding step, by batch size and context: measured, whole steps.

    Every plain step corrects what the cost table says of one, by a ratio for each batch size. So the
    measured level holds at any context, and between two plain steps it follows the machine's pace, which
    the table learns from the forwards of all steps.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._ratios: dict[int, _Ratio] = {}  # by batch size

    def observe(self, batch: int, context: int, seconds: float) -> None:
        """A step that gave ``batch`` requests a token each and did nothing else took this long."""
        seen = seconds / plain_parts(self._costs, batch, context)
        ratio = self._ratios.get(batch)
        if ratio is None:
            # Another batch size's counts as one measurement: a single step may be anything.
            nearest = self._nearest(batch)
            self._ratios[batch] = _Ratio(seen, 1) if nearest is None else _Ratio((seen + nearest) / 2, 2)
            return
        ratio.count += 1
        # The first ones count alike; later ones are held near the usual, so that a stall moves little.
        if ratio.count > 3:
            seen = min(max(seen, 0.7 * ratio.value), 1.4 * ratio.value)
        ratio.value += max(_NEWEST, 1 / ratio.count) * (seen - ratio.value)

    def seconds(self, batch: int, context: int) -> float:
        """Of a step that gives ``batch`` requests with ``context`` KV rows in all a token each."""
        return plain_parts(self._costs, batch, context) * (self._nearest(batch) or 1.0)

    def is_measured(self, batch: int) -> bool:
        """Whether a plain step of this batch size was seen."""
        return batch in self._ratios

    def _nearest(self, batch: int) -> float | None:
        """The ratio of this batch size, or of the one next to it."""
        if batch in self._ratios:
            return self._ratios[batch].value
        if not self._ratios:
            return None
        return self._ratios[min(self._ratios, key=lambda known: abs(known - batch))].value
