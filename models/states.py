"""The target's states by KV row, for a draft that reads them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import torch
from torch import Tensor

from .device import device_for

_PENDING = 128  # rows: many at a time take little more than one does, and they are few to hold on to

Parts = Sequence[Tensor]  # of the same rows: [N, ...] each
Join = Callable[[Parts], Tensor]  # parts of N rows -> their states [N, F]


class RowStates:
    """``num_rows`` rows of states, zero at the start.

    Plain steps write states that nobody may ever read. So a step can leave the parts that its states are
    made of: they are joined when somebody reads, or when there are many, in one go. What is written to a
    row, moved, copied or cleared meanwhile counts as if they had been joined at once; a row that was
    written again never is.

    Where the host does not know rows without waiting for them, all is done at once.
    """

    def __init__(self, num_rows: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._pool = torch.zeros(num_rows, size, dtype=dtype, device=device)
        self._defers = device_for(device).reads_freely
        self._steps: list[Parts] = []
        self._num_parts = 0  # rows of `_steps` together
        self._pending: dict[int, int] = {}  # row -> its place among them; what is not here is in the pool
        self._join: Join | None = None

    def write(self, rows: Tensor, states: Tensor) -> None:
        """rows: [N] int64; states: [N, F] of any dtype."""
        if self._pending:
            self._forget(set(rows.tolist()))
        self._pool.index_copy_(0, rows, states.to(self._pool.dtype))

    def write_parts(self, rows: Tensor, parts: Parts, join: Join) -> None:
        """Write ``join(parts)`` to ``rows`` [N] int64. The parts are kept: nobody may change them.

        join: works row by row, and is the same in every call.
        """
        if not self._defers:
            self.write(rows, join(parts))
            return
        self._join = join
        self._pending.update((row, place) for place, row in enumerate(rows.tolist(), self._num_parts))
        self._steps.append(parts)
        self._num_parts += len(rows)
        if self._num_parts >= _PENDING:
            self._settle()

    def read(self, rows: Tensor) -> Tensor:
        """rows: [N] int64 -> [N, F], a copy."""
        self._settle()
        return self._pool[rows]

    def before(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Of tokens at ``rows`` and ``positions`` ([N] int64), the states one position earlier: [N, F].

        Nothing comes before position 0: zeros.
        """
        return self.read((rows - 1).clamp_min(0)).masked_fill((positions == 0)[:, None], 0.0)

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy rows [n] int64 to rows [n] int64; every source is read before a destination is written."""
        self._pool.index_copy_(0, destination, self._pool.index_select(0, source))
        if not self._pending:
            return
        places = [self._pending.get(row) for row in source.tolist()]
        for row, place in zip(destination.tolist(), places, strict=True):
            if place is None:
                self._pending.pop(row, None)
            else:
                self._pending[row] = place

    def copy(self, source: int, destination: int, length: int) -> None:
        """Copy the run of ``length`` rows at ``source`` to ``destination``; the runs may overlap."""
        run = self._pool.narrow(0, source, length)
        overlap = abs(source - destination) < length
        self._pool.narrow(0, destination, length).copy_(run.clone() if overlap else run)
        shift, copied = destination - source, range(source, source + length)
        places = {row + shift: place for row, place in self._pending.items() if row in copied}
        self._forget(range(destination, destination + length))
        self._pending.update(places)

    def clear(self, start: int, length: int) -> None:
        """Zero the run of ``length`` rows at ``start``."""
        self._pool.narrow(0, start, length).zero_()
        self._forget(range(start, start + length))

    def _forget(self, rows: Container[int]) -> None:
        """What counts of ``rows`` from now on is in the pool."""
        self._pending = {row: place for row, place in self._pending.items() if row not in rows}

    def _settle(self) -> None:
        if self._pending:
            self._join_pending()
            self._pending.clear()
        self._steps.clear()
        self._num_parts = 0

    def _join_pending(self) -> None:
        """All or nothing: after an error a step that is run again joins them again."""
        assert self._join is not None
        parts = [torch.cat(same) for same in zip(*self._steps, strict=True)]
        places = list(self._pending.values())
        if places != list(range(self._num_parts)):
            chosen = torch.tensor(places)
            parts = [part.index_select(0, chosen) for part in parts]
        states = self._join(parts)
        self._pool.index_copy_(0, torch.tensor(list(self._pending)), states.to(self._pool.dtype))
