"""What whole plain steps take over the sum of their parts, from plain steps alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Parts = Callable[[int, int], float]
"""Seconds of a plain step's parts by the table of the moment, for a batch and its KV rows in all."""


Move = Callable[[float, float], float]
"""From a factor, some way towards another that was seen."""

COMPARED = 3  # steps
_USUAL_CONTEXT = 256  # KV rows of a request, for a factor whose steps are not known any more


@dataclass(frozen=True, slots=True)
class _Step:
    """A plain step that was measured."""

    batch: int
    context: int
    seconds: float

    def factor(self, parts: Parts) -> float:
        return self.seconds / parts(self.batch, self.context)


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

    def __init__(self, parts: Parts, learned: Iterable[tuple[int, float]] = ()) -> None:
        """learned: magnitudes with factors, by an earlier server."""
        self._parts = parts
        self._anchors: dict[int, _Anchor] = {}
        for magnitude, factor in learned:
            batch = 1 << max(0, magnitude - 1)
            context = _USUAL_CONTEXT * batch
            self._anchors[magnitude] = _Anchor(_Step(batch, context, factor * parts(batch, context)))

    def all(self) -> list[tuple[int, float]]:
        return [(magnitude, anchor.usual.factor(self._parts)) for magnitude, anchor in self._anchors.items()]

    def at(self, batch: int) -> float:
        """Of the nearest magnitude that was seen; 1 before there was any."""
        magnitude = batch.bit_length()
        nearest = min(self._anchors, key=lambda known: abs(known - magnitude), default=None)
        return 1.0 if nearest is None else self._anchors[nearest].usual.factor(self._parts)

    def observe(self, batch: int, context: int, seconds: float, move: Move) -> None:
        """A plain step took this long."""
        anchor = self._anchors.get(batch.bit_length())
        earlier = anchor.latest if anchor is not None else ()
        latest = (*earlier[1 - COMPARED :], _Step(batch, context, seconds))
        seen = middle([step.factor(self._parts) for step in latest])
        value = move(self.at(batch), seen)
        self._anchors[batch.bit_length()] = _Anchor(
            _Step(batch, context, value * self._parts(batch, context)), latest
        )


def middle(seen: Sequence[float]) -> float:
    """Of the last three steps: a stall, or a first step of its size, is none of its kind.

    Of two the lower one, for what a machine does meanwhile makes a step only longer.
    """
    return sorted(seen)[(len(seen) - 1) // 2]
