"""Guesses from matches: the longer the agreement, the likelier is what followed it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from functools import cache

from .base import Path
from .match_index import MAX_MATCH
from .rates import Guess, Rates

_BOUNDS = (2, 3, 4, 6, 9, 15, 24)  # shortest agreement of each kind
_KIND_OF = tuple(sum(bound <= length for bound in _BOUNDS) - 1 for length in range(MAX_MATCH + 1))
_OTHER = len(_BOUNDS)  # a kind of its own: the first token of any guess but the best
MATCH_PRIORS = (0.3, 0.4, 0.5, 0.65, 0.8, 0.88, 0.92, 0.15)
_MAX_GUESSES = 3


class Guesses:
    """What a source said of one place in its text, to be compared with what came."""

    def __init__(self) -> None:
        self.rates = Rates(MATCH_PRIORS)
        self._said: tuple[Guess, ...] = ()
        self._at = -1  # tokens there were when it was said

    def say(self, candidates: Iterable[tuple[int, tuple[int, ...]]], at: int) -> tuple[Path, ...]:
        """Paths of the best candidates that begin differently.

        candidates: tokens, each with the length of the agreement before them, the longest first.
        at: tokens there are.
        """
        guesses: dict[int, Guess] = {}
        for length, tokens in candidates:
            if tokens and tokens[0] not in guesses:
                guesses[tokens[0]] = Guess(tokens, kinds(length, len(tokens), best=not guesses))
            if len(guesses) == _MAX_GUESSES:
                break
        self._said, self._at = tuple(guesses.values()), at
        return tuple(guess.path(self.rates) for guess in self._said)

    def settle(self, token_ids: SequenceOf[int], start: int) -> None:
        """Learn from ``token_ids[start:]``."""
        if self._at == start:
            followed = token_ids[start:]
            for guess in self._said:
                guess.settle(self.rates, followed)
        self._said = ()


@cache
def kinds(length: int, count: int, *, best: bool) -> tuple[int, ...]:
    """Of ``count`` tokens behind an agreement of ``length``: each right one makes it longer."""
    by_length = [_KIND_OF[min(length + place, MAX_MATCH)] for place in range(count)]
    return tuple(by_length) if best or not count else (_OTHER, *by_length[1:])
