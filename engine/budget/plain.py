"""What whole plain steps take over the sum of their parts, from plain steps alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

COMPARED = 3  # steps
_NEWEST = 0.25  # weight of the newest step: what trees are weighed against must not be wrong for long
_MOST_SEEN = 1.5  # times what is usual that a single step may seem to take
_USUAL_CONTEXT = 256  # KV rows of a request, for a factor whose steps are not known any more


class PlainParts(Protocol):
    """The part of `StepCosts` that a step without trees is made of."""

    def target_seconds(self, tokens: int, context: int) -> float: ...

    def sample_seconds(self, rows: int, expanded: int) -> float: ...


def plain_parts(costs: PlainParts, batch: int, context: int) -> float:
    """Seconds of a plain step's parts, by the costs of the moment. context: KV rows in all."""
    return costs.target_seconds(batch, context) + costs.sample_seconds(batch, 0)


@dataclass(frozen=True, slots=True)
class _Step:
    """A plain step that was measured."""

    batch: int
    context: int
    seconds: float

    def factor(self, costs: PlainParts) -> float:
        return self.seconds / plain_parts(costs, self.batch, self.context)


@dataclass(slots=True)
class _Anchor:
    """What a plain step of one magnitude takes: ``usual`` is made of all that were seen, ``latest`` were."""

    usual: _Step
    latest: tuple[_Step, ...] = ()


class PlainFactors:
    """By the magnitude of the batch.

    A factor is kept as seconds that were measured, and worked out anew from the table of the moment. So
    where steps with trees take longer than was thought, and the table learns it, plain steps do not seem
    slower: only their own times say that. What the table gets wrong about its level cancels; they go by it
    from one batch or context to the next.
    """

    def __init__(self, costs: PlainParts, learned: Iterable[tuple[int, float]] = ()) -> None:
        """learned: magnitudes with factors, by an earlier server."""
        self._costs = costs
        self._anchors: dict[int, _Anchor] = {}
        for magnitude, factor in learned:
            batch = 1 << max(0, magnitude - 1)
            self._anchors[magnitude] = _Anchor(self._usual(batch, _USUAL_CONTEXT * batch, factor))

    def all(self) -> list[tuple[int, float]]:
        return [(magnitude, anchor.usual.factor(self._costs)) for magnitude, anchor in self._anchors.items()]

    def at(self, batch: int) -> float:
        """Of the nearest magnitude that was seen; 1 before there was any."""
        magnitude = batch.bit_length()
        anchor = self._anchors.get(magnitude)
        if anchor is None and self._anchors:
            anchor = self._anchors[min(self._anchors, key=lambda known: abs(known - magnitude))]
        return 1.0 if anchor is None else anchor.usual.factor(self._costs)

    def observe(self, batch: int, context: int, seconds: float) -> None:
        """A plain step took this long."""
        anchor = self._anchors.get(batch.bit_length())
        earlier = anchor.latest if anchor is not None else ()
        latest = (*earlier[1 - COMPARED :], _Step(batch, context, seconds))
        value, seen = self.at(batch), middle([step.factor(self._costs) for step in latest])
        factor = value * within(seen / value, _MOST_SEEN) ** _NEWEST
        self._anchors[batch.bit_length()] = _Anchor(self._usual(batch, context, factor), latest)

    def _usual(self, batch: int, context: int, factor: float) -> _Step:
        return _Step(batch, context, factor * plain_parts(self._costs, batch, context))


def middle(seen: Sequence[float]) -> float:
    """Of the last three steps: a stall, or a first step of its size, is none of its kind.

    Of two the lower one, for what a machine does meanwhile makes a step only longer.
    """
    return sorted(seen)[(len(seen) - 1) // 2]


def within(factor: float, most: float) -> float:
    """The factor, off from 1 by ``most`` times at the most."""
    return min(max(factor, 1 / most), most)
