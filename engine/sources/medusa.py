"""Medusa heads as a source: what they said of the places behind the last token, in all combinations."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from .base import Path
from .growth import grow_paths
from .rates import Rates

NUM_TOPS = 8  # tokens of each head
_PRIORS = (0.4, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01)  # by rank


class MedusaSource:
    """The heads' tokens of the last step; the chance of each is how often its rank was right of late."""

    name = "medusa"

    def __init__(self) -> None:
        self._rates: list[Rates] = []  # by head
        self._tops: SequenceOf[SequenceOf[int]] = ()
        self._at = -1  # tokens there were when they were said

    def paths(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[Path, ...]:
        if self._at != len(token_ids):
            return ()

        def children(path: tuple[int, ...]) -> Iterable[tuple[int, float]]:
            depth = len(path)
            if depth < len(self._tops):
                rates = self._rates[depth]
                yield from ((token, rates[rank]) for rank, token in enumerate(self._tops[depth]))

        return grow_paths(children, max_tokens)

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        """Learn how often each rank of each head was right: they speak of places, whatever was accepted."""
        if self._at == start:
            for rates, tops, token in zip(self._rates, self._tops, token_ids[start:], strict=False):
                for rank, top in enumerate(tops):
                    rates.add(rank, top == token)
        self._tops = ()

    def look_ahead(self, tops: SequenceOf[SequenceOf[int]], at: int) -> None:
        self._rates += [Rates(_PRIORS) for _ in tops[len(self._rates) :]]
        self._tops, self._at = tops, at
