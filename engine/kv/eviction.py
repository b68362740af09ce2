"""Which finished sequences to give up so that nobody has to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .extents import Extent


def stalest_run(
    extents: Sequence[Extent], ages: Mapping[Extent, int], num_rows: int, wanted: int
) -> Sequence[Extent] | None:
    """Adjacent extents whose rows, with the free ones around and between them, make ``wanted`` in a row.

    Of all such runs the one whose most recently used extent was used longest ago; then the shortest.

    Args:
        extents: all of the memory's, by start.
        ages: those that may be given up, numbered from the least recently used one.
        num_rows: of the memory.
        wanted: rows.

    Returns:
        The extents to give up. None: there is no such run.
    """
    best: tuple[int, int, int] | None = None
    for first in range(len(extents)):
        start = extents[first - 1].end if first else 0
        newest = -1
        for last in range(first, len(extents)):
            age = ages.get(extents[last])
            if age is None:
                break
            newest = max(newest, age)
            if best is not None and newest > best[0]:
                break
            end = extents[last + 1].start if last + 1 < len(extents) else num_rows
            if end - start >= wanted:
                candidate = (newest, last + 1 - first, first)
                best = candidate if best is None else min(best, candidate)
                break
    if best is None:
        return None
    _, count, first = best
    return extents[first : first + count]
