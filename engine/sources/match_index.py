"""Where a text's last words have occurred before: hash chains over pairs of tokens, as in LZ77.

Adding a token is one dictionary entry. A search walks back over a bounded number of earlier places with
the same last pair and measures how far each agrees, so neither grows with the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

MIN_MATCH = 2  # tokens hashed together; a shorter agreement says little
MAX_MATCH = 32  # tokens compared at most
_MAX_PLACES = 16  # earlier places looked at in one search


class Match(NamedTuple):
    position: int  # of the token that followed
    length: int  # tokens that agree before it


class MatchIndex:
    """A growing text, searchable by what comes before a place."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, int], int] = {}  # pair -> the last place right behind it
        self._earlier: list[int] = []  # place -> the one before it with the same pair; -1: none
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        text, latest, earlier = self.tokens, self._latest, self._earlier
        for token in tokens:
            place = len(text)
            if place < MIN_MATCH:
                earlier.append(-1)
            else:
                pair = (text[place - 2], text[place - 1])
                earlier.append(latest.get(pair, -1))
                latest[pair] = place
            text.append(token)

    def find(self, context: SequenceOf[int]) -> list[Match]:
        """Places that follow what ``context`` ends with: the longest agreement first, then the latest."""
        if len(context) < MIN_MATCH:
            return []
        place = self._latest.get((context[-2], context[-1]), -1)
        matches: list[Match] = []
        while place >= 0 and len(matches) < _MAX_PLACES:
            matches.append(Match(place, self._agreement(place, context)))
            place = self._earlier[place]
        matches.sort(key=lambda match: -match.length)  # stable, so the latest stay first
        return matches

    def following(self, place: int, count: int) -> tuple[int, ...]:
        return tuple(self.tokens[place : place + count])

    def _agreement(self, place: int, context: SequenceOf[int]) -> int:
        most = min(MAX_MATCH, place, len(context))
        length = MIN_MATCH  # the pair itself
        while length < most and self.tokens[place - 1 - length] == context[-1 - length]:
            length += 1
        return length
