"""Finds stop strings in text that arrives in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string, complete. Offsets count characters since the matcher was made."""

    stop: str
    start: int
    end: int


class StopStringMatcher:
    """Follows one Knuth-Morris-Pratt automaton per stop string.

    The result does not depend on how the text was split: the first stop string to be completed wins,
    and of several that end on the same character the one that begins first. The cost per character
    is constant on average, however long the strings are.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string, which would match before the first token."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._offset = 0

    @property
    def undecided(self) -> int:
        """Characters at the end of the text so far that may still become a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str, armed: bool = True) -> StopMatch | None:
        """Read ``text`` up to the first stop string that is completed in it.

        Unless ``armed``, a string that is completed here is passed over; one that only begins here is
        still found when it is completed later.
        """
        if not self._stops:
            self._offset += len(text)
            return None
        for char in text:
            self._offset += 1
            found = self._step(char)
            if found is not None and armed:
                return StopMatch(found, self._offset - len(found), self._offset)
        return None

    def _step(self, char: str) -> str | None:
        """Advance every automaton by one character; the longest stop string that it completes."""
        found: str | None = None
        for index, stop in enumerate(self._stops):
            borders = self._borders[index]
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                if found is None or len(stop) > len(found):
                    found = stop
                matched = borders[-1]
            self._matched[index] = matched
        return found


def _borders(pattern: str) -> tuple[int, ...]:
    """For every prefix of ``pattern``, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        borders[index] = length
    return tuple(borders)
