"""Prompt lookup (Saxena, 2023): what followed the last tokens when they occurred before in this text."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .base import Path
from .match_index import MatchIndex
from .matching import Guesses


class NgramSource:
    """Over the prompt and the output so far, the longest agreement first."""

    name = "ngram"

    def __init__(self, prompt: SequenceOf[int]) -> None:
        self._index = MatchIndex(prompt)
        self._guesses = Guesses()

    def paths(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[Path, ...]:
        matches = self._index.find(token_ids)
        candidates = ((match.length, self._following(match.position, max_tokens)) for match in matches)
        return self._guesses.say(candidates, len(token_ids))

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        self._guesses.settle(token_ids, start)
        self._index.extend(token_ids[start:])

    def _following(self, place: int, count: int) -> tuple[int, ...]:
        """What followed; at the text's end it goes on as it would if the repetition went on."""
        tokens = list(self._index.following(place, count))
        period = len(tokens)
        while len(tokens) < count:
            tokens.append(tokens[-period])
        return tuple(tokens)
