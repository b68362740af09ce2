"""Paths through a tree too large to be said whole: the likeliest nodes, grown best first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from .base import Path

_LEAST = 0.01  # chance of a whole path below which it is not worth saying

Children = Callable[[tuple[int, ...]], Iterable[tuple[int, float]]]
"""Tokens that may follow a path, each with its chance, the likeliest first."""


def grow_paths(children: Children, max_tokens: int) -> tuple[Path, ...]:
    """The leaves of the tree of about ``max_tokens`` likeliest nodes below ``()``, as paths to them."""
    root = Path((), ())
    heap: list[tuple[float, int, Path]] = [(-1.0, 0, root)]
    leaves: list[Path] = []
    grown = 0
    while heap:
        chance, _, path = heapq.heappop(heap)
        taken = False
        if grown <= max_tokens:
            for token, rate in children(path.tokens):
                if -chance * rate >= _LEAST:
                    taken = True
                    grown += 1
                    longer = Path((*path.tokens, token), (*path.chances, rate))
                    heapq.heappush(heap, (chance * rate, grown, longer))
        if not taken and path is not root:
            leaves.append(path)
    return tuple(leaves)
