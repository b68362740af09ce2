"""Token Recycling (Luo et al., arXiv 2408.08696): what the target ranked highest after each token of late."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf

from .base import Path, TopTokens
from .rates import Rates

NUM_TOPS = 6  # of the target's tokens kept for each
_CAPACITY = 1 << 14  # tokens that a table has an entry for
_PRIORS = (0.45, 0.12, 0.06, 0.04, 0.03, 0.02)  # by rank
_LEAST = 0.01  # chance of a whole path below which it is not worth saying


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
        """Grows the tree of the ``max_tokens`` likeliest nodes and gives its leaves."""
        root = Path((token_ids[-1],), ())
        heap: list[tuple[float, int, Path]] = [(-1.0, 0, root)]
        leaves: list[Path] = []
        grown = 0
        while heap:
            chance, _, path = heapq.heappop(heap)
            taken = False
            if grown <= max_tokens:
                for rank, token in enumerate(self._table.get(path.tokens[-1])):
                    rate = self._rates[rank]
                    if -chance * rate >= _LEAST:
                        taken = True
                        grown += 1
                        longer = Path((*path.tokens, token), (*path.chances, rate))
                        heapq.heappush(heap, (chance * rate, grown, longer))
            if not taken and path is not root:
                leaves.append(Path(path.tokens[1:], path.chances))
        return tuple(leaves)

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        """Learn how often each rank was right, from the table as it was before."""
        for place in range(start, len(token_ids)):
            for rank, token in enumerate(self._table.get(token_ids[place - 1])):
                self._rates.add(rank, token == token_ids[place])

    def observe(self, tops: SequenceOf[TopTokens]) -> None:
        for token, best in tops:
            self._table.put(token, best)
