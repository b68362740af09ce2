"""Token Recycling (Luo et al., arXiv 2408.08696): what the target ranked highest after each token of late."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from .base import Path, TopTokens
from .growth import grow_paths
from .rates import Rates

NUM_TOPS = 6  # of the target's tokens kept for each
_CAPACITY = 1 << 14  # tokens that a table has an entry for
_PRIORS = (0.45, 0.12, 0.06, 0.04, 0.03, 0.02)  # by rank


class TopTable:
    """Token -> the target's top tokens when it last came after it; the least recent entries go first."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._tops: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._tops)

    def get(self, token: int) -> tuple[int, ...]:
        return self._tops.get(token, ())

    def put(self, token: int, tops: tuple[int, ...]) -> None:
        self._tops.pop(token, None)
        self._tops[token] = tops
        if len(self._tops) > self._capacity:
            del self._tops[next(iter(self._tops))]


class RecycleSource:
    """Paths through the table, the likeliest first."""

    name = "recycle"

    def __init__(self, table: TopTable) -> None:
        self._table = table
        self._rates = Rates(_PRIORS)

    def paths(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[Path, ...]:
        """Of the tree of the ``max_tokens`` likeliest nodes, the leaves."""

        def children(path: tuple[int, ...]) -> Iterable[tuple[int, float]]:
            tops = self._table.get(path[-1] if path else token_ids[-1])
            return ((token, self._rates[rank]) for rank, token in enumerate(tops))

        return grow_paths(children, max_tokens)

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        """Learn how often each rank was right, from the table as it was before."""
        for place in range(start, len(token_ids)):
            for rank, token in enumerate(self._table.get(token_ids[place - 1])):
                self._rates.add(rank, token == token_ids[place])

    def observe(self, tops: SequenceOf[TopTokens]) -> None:
        for token, best in tops:
            self._table.put(token, best)
