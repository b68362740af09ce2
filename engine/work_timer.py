"""Adds up the time of something that is done in many pieces."""

from __future__ import annotations

import time


class WorkTimer:
    """Runs inside ``with``; inside another ``with`` of the same timer it just goes on. For one thread."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._depth = 0
        self._began = 0.0

    def __enter__(self) -> None:
        if not self._depth:
            self._began = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._seconds += time.perf_counter() - self._began

    def take(self) -> float:
        """The seconds since the last time they were taken."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
