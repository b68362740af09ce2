"""Random numbers that depend on the request, the purpose and the position, and on nothing else.

A counter-based generator (Philox 4x64-10, Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3")
has no state to advance: the numbers at a position are the same alone, in a batch and after preemption.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RUN = 16  # positions whose first numbers are made together
_MOST_RUNS = 1024


class Stream(IntEnum):
    """What a number is for. Streams of one key are independent."""

    DRAFT = 0  # tail draws
    VERIFY = 1  # tests of children
    FINAL = 2  # the correction or bonus token


def stream_key(seed: int | None) -> int:
    """A request's key, in [0, 2**64): its seed, or fresh entropy where it has none."""
    return int.from_bytes(os.urandom(8), "little") if seed is None else seed % 2**64


class UniformSource:
    """Uniform numbers by (key, stream, position). Not for use by two threads at once."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        self._runs: dict[tuple[int, Stream], tuple[int, list[float]]] = {}  # of `first`, the oldest first
        # Lists, which are read twice as quickly as arrays. The generator copies what it is given.
        self._counter, self._key = [0, 0, 0, 0], [0, 0]
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": self._key},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,  # an empty buffer: the next number comes from the counter
            "has_uint32": 0,
            "uinteger": 0,
        }

    def first(self, key: int, stream: Stream, position: int) -> float:
        """The first number of a row of `block`.

        Those of some positions behind it are made along with it and kept: one by itself takes several times
        as long, with nothing of the generator in the processor's caches.
        """
        start, numbers = self._runs.get((key, stream), (position, []))
        if not start <= position < start + len(numbers):
            self._runs.pop((key, stream), None)
            if len(self._runs) == _MOST_RUNS:
                del self._runs[next(iter(self._runs))]
            positions = range(position, position + _RUN)
            start, numbers = position, self.block([key] * _RUN, stream, positions, 1)[:, 0].tolist()
            self._runs[key, stream] = start, numbers
        return numbers[position - start]

    def block(
        self, keys: Sequence[int], stream: Stream, positions: Sequence[int], count: int
    ) -> NDArray[np.float64]:
        """[R, count] float64 in [0, 1): a row for each key and position.

        Row ``r`` is a function of ``keys[r]``, ``stream`` and ``positions[r]`` (tokens before the
        step); a longer row begins with the shorter one.
        """
        rows = np.empty((len(keys), count), dtype=np.float64)
        if not count:
            return rows
        for row, key, position in zip(rows, keys, positions, strict=True):
            self._seek(key, stream, position)
            self._generator.random(out=row)
        return rows

    def _seek(self, key: int, stream: Stream, position: int) -> None:
        # The lowest word of the counter runs within a row; the next one holds the position.
        self._counter[1] = position
        self._key[0], self._key[1] = key, stream
        self._bits.state = self._state
