"""Running acceptance rates: how often guesses of a kind were right of late."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from .base import Path

_PRIOR_WEIGHT = 4.0  # guesses that a prior counts for
_MEMORY = 64.0  # guesses after which old ones count half


class Rates:
    """One rate for each kind of guess: the mean of a Beta law whose counts fade."""

    def __init__(self, priors: SequenceOf[float]) -> None:
        self._right = [prior * _PRIOR_WEIGHT for prior in priors]
        self._total = [_PRIOR_WEIGHT] * len(priors)
        self._rates = list(priors)  # read far more often than they change

    def __getitem__(self, kind: int) -> float:
        return self._rates[kind]

    def of(self, kinds: SequenceOf[int]) -> tuple[float, ...]:
        """Of several kinds."""
        rates = self._rates
        return tuple([rates[kind] for kind in kinds])

    def add(self, kind: int, right: bool) -> None:
        self._right[kind] += right
        self._total[kind] += 1
        if self._total[kind] > _MEMORY:
            self._right[kind] /= 2
            self._total[kind] /= 2
        self._rates[kind] = self._right[kind] / self._total[kind]


@dataclass(frozen=True, slots=True)
class Guess:
    """A path with the kind of each of its tokens."""

    tokens: tuple[int, ...]
    kinds: tuple[int, ...]

    def path(self, rates: Rates) -> Path:
        return Path(self.tokens, rates.of(self.kinds))

    def settle(self, rates: Rates, followed: SequenceOf[int]) -> None:
        """Learn from what really followed, up to the first wrong token."""
        for token, kind, actual in zip(self.tokens, self.kinds, followed, strict=False):
            rates.add(kind, token == actual)
            if token != actual:
                return
