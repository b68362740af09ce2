"""Keeps what a server learns of its costs, so that the next start begins with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from .table import CostTable, LearnedCosts

_log = logging.getLogger(__name__)
_FIRST_KEPT = 256  # steps until costs are written for the first time; then after twice as many each time


class CostKeeper:
    """Writes a table and what was learned beside it in growing intervals: a server may end at any time."""

    def __init__(self, path: Path, key: str, table: CostTable, learned: Callable[[], LearnedCosts]) -> None:
        self._path, self._key = path, key
        self._table, self._learned = table, learned
        self._steps, self._due = 0, _FIRST_KEPT

    def step(self) -> None:
        """Call it once a step. A file that cannot be written is only logged."""
        self._steps += 1
        if self._steps < self._due:
            return
        self._due *= 2
        try:
            self._table.save(self._path, self._key, self._learned())
        except OSError as error:
            _log.warning("the costs cannot be kept in %s: %s", self._path, error.strerror or error)
