"""Contiguous runs of KV rows: one run, an *extent*, per sequence.

The target and the draft have memories of the same number of rows, and a sequence owns the same rows in
both. Attention then reads one slice per sequence, without a gather. The price is fragmentation, which
is paid by moving rows, as few as possible and only when an allocation would fail otherwise::

    rows     [ a a a . . b b . . . c c . ]      . free
    compact  [ a a a b b c c . . . . . . ]
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate


@dataclass(eq=False, slots=True)
class Extent:
    """Rows ``[start, start + length)``. An identity: moving or growing changes its fields."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Move:
    """Copy ``length`` rows. The two runs may overlap: all are read before any is written."""

    source: int
    destination: int
    length: int


class ExtentAllocator:
    """Hands out extents of a memory of ``num_rows`` rows, in units of ``align`` rows.

    Every operation is linear in the number of extents. Moves are to be executed in the order returned,
    before anything is written to rows that were handed out later.
    """

    def __init__(self, num_rows: int, align: int = 16) -> None:
        """Rows beyond the last whole unit are not used. Raises ValueError for less than one unit."""
        if align < 1 or num_rows < align:
            raise ValueError(f"{num_rows} rows do not hold one unit of {align}")
        self.align = align
        self.num_rows = num_rows // align * align
        self._extents: list[Extent] = []  # by start
        self._free = self.num_rows

    @property
    def free_rows(self) -> int:
        return self._free

    @property
    def largest_free(self) -> int:
        """Length of the longest free run."""
        return max(self._gaps())

    @property
    def extents(self) -> tuple[Extent, ...]:
        """All extents, by start."""
        return tuple(self._extents)

    def units(self, num_rows: int) -> int:
        """``num_rows`` rounded up to whole units, in rows; at least one unit."""
        return max(1, -(-num_rows // self.align)) * self.align

    def allocate(self, num_rows: int) -> Extent | None:
        """An extent of at least ``num_rows``, in the smallest run that holds it. None: no run does."""
        wanted = self.units(num_rows)
        fitting = [(gap, index) for index, gap in enumerate(self._gaps()) if gap >= wanted]
        if not fitting:
            return None
        _, index = min(fitting)
        extent = Extent(self._extents[index - 1].end if index else 0, wanted)
        self._extents.insert(index, extent)
        self._free -= wanted
        return extent

    def grow(self, extent: Extent, num_rows: int) -> bool:
        """Make the extent at least ``num_rows`` long where it is. False: the rows behind are taken."""
        more = self.units(num_rows) - extent.length
        if more > self._gap(self._index(extent) + 1):
            return False
        if more > 0:
            extent.length += more
            self._free -= more
        return True

    def shrink(self, extent: Extent, num_rows: int) -> None:
        """Give back the units behind the first ``num_rows`` rows."""
        self._index(extent)
        kept = min(extent.length, self.units(num_rows))
        self._free += extent.length - kept
        extent.length = kept

    def free(self, extent: Extent) -> None:
        """Give the rows back. Raises ValueError if the extent is not (or no longer) handed out."""
        del self._extents[self._index(extent)]
        self._free += extent.length

    def compact(self, num_rows: int | None = None) -> list[Move]:
        """Move extents to lower rows until a free run of ``num_rows`` exists (None: until all is one run).

        Of all windows that would give such a run, the one with the fewest rows to move is closed up.
        Nothing moves, and nothing is returned, if there is such a run or not enough is free.
        """
        if num_rows is None:
            return self._slide_down(0, len(self._extents))
        window = self._window(self.units(num_rows))
        return [] if window is None else self._slide_down(*window)

    def open_behind(self, extent: Extent, num_rows: int) -> list[Move]:
        """Move extents aside, this one too, until it can grow in place to ``num_rows``.

        The extent and those before it move to lower rows, those behind it to higher ones. Nothing
        moves if it can grow already or if not enough is free.
        """
        behind = self._index(extent) + 1
        window = self._window(self.units(num_rows) - extent.length, behind)
        if window is None:
            return []
        first, last = window
        return self._slide_down(first, behind) + self._slide_up(behind, last)

    def check(self) -> None:
        """Raises AssertionError if the bookkeeping contradicts itself."""
        end = 0
        for extent in self._extents:
            if extent.start < end:
                raise AssertionError(f"{extent} overlaps the extent that ends at row {end}")
            if extent.length < 1 or extent.start % self.align or extent.length % self.align:
                raise AssertionError(f"{extent} is not made of units of {self.align} rows")
            end = extent.end
        if end > self.num_rows:
            raise AssertionError(f"{self._extents[-1]} ends behind the last row, {self.num_rows}")
        held = sum(extent.length for extent in self._extents)
        if held + self._free != self.num_rows:
            raise AssertionError(f"{held} rows held and {self._free} free do not make {self.num_rows}")

    def _index(self, extent: Extent) -> int:
        index = bisect_left(self._extents, extent.start, key=lambda other: other.start)
        if index == len(self._extents) or self._extents[index] is not extent:
            raise ValueError(f"{extent} is not handed out")
        return index

    def _gap(self, index: int) -> int:
        """Free rows before extent ``index``; behind the last one for ``index == len``."""
        start = self._extents[index - 1].end if index else 0
        end = self._extents[index].start if index < len(self._extents) else self.num_rows
        return end - start

    def _gaps(self) -> list[int]:
        return [self._gap(index) for index in range(len(self._extents) + 1)]

    def _window(self, num_rows: int, pivot: int | None = None) -> tuple[int, int] | None:
        """Extents ``[first, last)`` with the fewest rows, so that the gaps around and between them hold
        ``num_rows``; gap ``pivot`` must be one of these gaps. None: not enough is free.
        """
        free = [0, *accumulate(self._gaps())]  # free[i]: rows in the gaps before gap i
        used = [0, *accumulate(extent.length for extent in self._extents)]
        best: tuple[int, int, int] | None = None
        for first in range(len(free) - 1 if pivot is None else pivot + 1):
            last = bisect_left(free, free[first] + num_rows) - 1
            if pivot is not None:
                last = max(last, pivot)
            if last > len(self._extents):
                break  # later windows have even less
            candidate = (used[last] - used[first], first, last)
            best = candidate if best is None else min(best, candidate)
        return None if best is None else best[1:]

    def _slide_down(self, first: int, last: int) -> list[Move]:
        end = self._extents[first - 1].end if first else 0
        moves = []
        for extent in self._extents[first:last]:
            if extent.start != end:
                moves.append(Move(extent.start, end, extent.length))
                extent.start = end
            end = extent.end
        return moves

    def _slide_up(self, first: int, last: int) -> list[Move]:
        start = self._extents[last].start if last < len(self._extents) else self.num_rows
        moves = []
        for extent in reversed(self._extents[first:last]):
            if extent.end != start:
                moves.append(Move(extent.start, start - extent.length, extent.length))
                extent.start = start - extent.length
            start = extent.start
        return moves
