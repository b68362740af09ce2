"""Progress of a preparation on stderr: live bars on a terminal, a few plain lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Meter(Protocol):
    """Progress of one step."""

    def __call__(self, done: float) -> None:
        """``done`` units are behind us, of the total named at the start."""


class Progress:
    """Progress of several steps, one after the other; silent if ``enabled`` is false."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._console = Console(file=sys.stderr, quiet=not enabled, highlight=False)

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, soft_wrap=True, markup=False)

    @contextmanager
    def step(self, text: str, total: float, *, size: bool = False) -> Iterator[Meter]:
        """One step of ``total`` units (bytes if ``size``)."""
        if self._console.is_terminal:
            column = DownloadColumn() if size else TextColumn("{task.completed:.0f}/{task.total:.0f}")
            columns = (TextColumn("{task.description}"), BarColumn(), column, TimeElapsedColumn())
            with Bars(*columns, console=self._console) as bars:
                task = bars.add_task(text, total=total)
                yield lambda done: bars.update(task, completed=done)
                bars.update(task, completed=total)
        else:
            self.note(f"{text} ...")
            yield _Quarters(self, text, total)


class _Quarters:
    """A line at 25, 50 and 75 per cent: enough for a log, whatever the number of updates."""

    def __init__(self, progress: Progress, text: str, total: float) -> None:
        self._progress, self._text, self._total = progress, text, total
        self._next = 1

    def __call__(self, done: float) -> None:
        quarter = int(4 * done / self._total) if self._total else 0
        if self._next <= quarter < 4:
            self._progress.note(f"{self._text} ... {25 * quarter} %")
        self._next = max(self._next, quarter + 1)
