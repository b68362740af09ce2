"""What was kept of drafted trees, counted by shape: enough to tell what other trees would have kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from ..config import ConfigError
from ..tree import Level, TreeShape
from .acceptance import Acceptance
from .ladder import levels_of

_ALL_ALIKE = 1e12  # tests: a memory so long that old ones count as much as new ones
_PRIOR = 2.0  # tests that a rate of 0.5 is worth: what is left of it where little was seen


class KeptTrees(msgspec.Struct, frozen=True):
    """Of one shape, how many trees kept how much: a line of a trace file."""

    greedy: bool  # at temperature 0
    levels: tuple[tuple[int, int, int], ...]  # of each: nodes expanded, head and tail children of each
    counts: tuple[int, ...]  # [a]: trees of which a path of ``a`` candidates was kept
    shared: tuple[bool, ...] = ()  # of each level; none: none is


class AcceptanceRecord:
    """Counts of one server, or of one run of it."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[TreeShape, bool], Counter[int]] = defaultdict(Counter)

    def add(self, shape: TreeShape, num_kept: int, *, greedy: bool) -> None:
        """A tree was verified, and a path of ``num_kept`` candidates kept."""
        self._counts[shape, greedy][num_kept] += 1

    def merge(self, others: Iterable[AcceptanceRecord]) -> Self:
        """Add what others counted."""
        for other in others:
            for key, counts in other._counts.items():
                self._counts[key].update(counts)
        return self

    @property
    def num_trees(self) -> int:
        return sum(counts.total() for counts in self._counts.values())

    def rates(self, depth: int, *, greedy: bool) -> tuple[float, ...]:
        """Of single children at the first ``depth`` depths, as all trees together show them, in [0, 1)."""
        acceptance = Acceptance(_ALL_ALIKE, _PRIOR)
        for (shape, was_greedy), counts in self._counts.items():
            if was_greedy is greedy:
                levels = levels_of(shape, greedy=greedy)
                for num_kept, count in counts.items():
                    for _ in range(count):
                        acceptance.observe(levels, num_kept)
        return acceptance.rates(depth)

    def save(self, path: Path) -> None:
        """One JSON object a line. Raises OSError."""
        lines = [
            KeptTrees(
                greedy,
                tuple((level.expand, level.num_head, level.num_tail) for level in shape.levels),
                tuple(counts[kept] for kept in range(max(counts) + 1)),
                tuple(level.shared for level in shape.levels),
            )
            for (shape, greedy), counts in self._counts.items()
        ]
        path.write_bytes(msgspec.json.Encoder().encode_lines(lines))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ConfigError for a file that cannot be read or holds something else."""
        record = cls()
        try:
            lines = msgspec.json.Decoder(KeptTrees).decode_lines(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} holds no trace of acceptance ({error})", "trace") from error
        for line in lines:
            shared = line.shared or (False,) * len(line.levels)
            if len(shared) != len(line.levels):
                raise ConfigError(f"{path}: shared {shared} for {len(line.levels)} levels", "trace")
            levels = zip(line.levels, shared, strict=True)
            shape = TreeShape(tuple(Level(*level, shared=together) for level, together in levels))
            if len(line.counts) > len(shape.levels) + 1 or any(count < 0 for count in line.counts):
                raise ConfigError(f"{path}: counts {line.counts} for {len(shape.levels)} levels", "trace")
            record._counts[shape, line.greedy].update(dict(enumerate(line.counts)))
        return record
