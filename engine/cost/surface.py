"""Seconds over tokens and context: positive, never falling in either, linear between knots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import exp, isfinite

_LEAST = 1e-9  # seconds: a cost is never 0, so that ratios of costs are always defined


class Surface:
    """A grid of knots, bilinear between them and rising on beyond the last.

    Below the first knot it is flat: a forward of no context costs what the first knot's does.
    """

    def __init__(
        self, tokens: Sequence[int], context: Sequence[int], seconds: Sequence[Sequence[float]]
    ) -> None:
        """Knots of tokens and context, rising; seconds: [tokens][context], which may be noisy.

        What falls where it should rise is lifted. Raises ValueError for what is no such grid.
        """
        for name, knots in (("tokens", tokens), ("context", context)):
            if not knots or any(a >= b for a, b in pairwise(knots)):
                raise ValueError(f"{name} must be rising, not {list(knots)}")
        if len(seconds) != len(tokens) or any(len(row) != len(context) for row in seconds):
            raise ValueError("seconds must have one value for every pair of tokens and context")
        if not all(isfinite(value) and value > 0 for row in seconds for value in row):
            raise ValueError("seconds must be positive")
        self.tokens, self.context = tuple(tokens), tuple(context)
        self._seconds = [[max(_LEAST, value) for value in row] for row in seconds]
        for i, row in enumerate(self._seconds):
            for j, value in enumerate(row):
                below = max(row[j - 1] if j else 0.0, self._seconds[i - 1][j] if i else 0.0)
                row[j] = max(value, below)

    @property
    def values(self) -> list[list[float]]:
        """Seconds at the knots: [tokens][context]."""
        return [list(row) for row in self._seconds]

    def at(self, tokens: float, context: float) -> float:
        i, u = _place(self.tokens, tokens)
        j, v = _place(self.context, context)
        beyond = self._beyond(u, v) if u > 1 or v > 1 else 1.0
        u, v = min(u, 1.0), min(v, 1.0)
        low, high = self._seconds[i], self._seconds[min(i + 1, len(self.tokens) - 1)]
        j2 = min(j + 1, len(self.context) - 1)
        at_low = low[j] + v * (low[j2] - low[j])
        at_high = high[j] + v * (high[j2] - high[j])
        return beyond * (at_low + u * (at_high - at_low))

    def _beyond(self, u: float, v: float) -> float:
        """What to multiply the border's value by: one factor a direction, so that nothing can fall."""
        factor = 1.0
        if u > 1:
            before, last = self._seconds[-2][0], self._seconds[-1][0]
            factor *= 1 + (u - 1) * (last - before) / last
        if v > 1:
            before, last = self._seconds[0][-2:]
            factor *= 1 + (v - 1) * (last - before) / last
        return factor

    def shift(self, tokens: float, context: float, step: float) -> None:
        """Raise (or, with a negative ``step``, lower) the logarithm of the knots around a place.

        Each knot by its weight in `at`. Where that would make the surface fall, the knots in the way
        move along.
        """
        i, u = _place(self.tokens, tokens)
        j, v = _place(self.context, context)
        u, v = min(u, 1.0), min(v, 1.0)
        for row, by_tokens in ((i, 1 - u), (i + 1, u)):
            for column, by_context in ((j, 1 - v), (j + 1, v)):
                if (weight := by_tokens * by_context) > 0:
                    value = max(_LEAST, self._seconds[row][column] * exp(step * weight))
                    (self._raise if step > 0 else self._lower)(row, column, value)

    def _raise(self, row: int, column: int, value: float) -> None:
        """Set a knot to ``value``, and all knots above it at least to that."""
        for values in self._seconds[row:]:
            if values[column] >= value:
                return
            for j in range(column, len(values)):
                if values[j] >= value:
                    break
                values[j] = value

    def _lower(self, row: int, column: int, value: float) -> None:
        for values in reversed(self._seconds[: row + 1]):
            if values[column] <= value:
                return
            for j in range(column, -1, -1):
                if values[j] <= value:
                    break
                values[j] = value


def _place(knots: tuple[int, ...], value: float) -> tuple[int, float]:
    """The knot to the left and how far the value is on the way to the next: above 1 beyond the last."""
    if len(knots) == 1 or value <= knots[0]:
        return 0, 0.0
    left = min(bisect_right(knots, value), len(knots) - 1) - 1
    return left, (value - knots[left]) / (knots[left + 1] - knots[left])
