"""Contenders side by side: a slice of each in turn, so that all meet the same state of the machine.

A machine that others share is a tenth slower for some seconds and then is not. Runs one after the other
would show that as a difference between contenders; in slices it falls on all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .measurement import Measurement
from .workload import Workload

SLICE = 0.25  # seconds: some steps, and far less than a machine's moods last

Parts = Generator[None, None, Measurement]


class Stopwatch:
    """Seconds that pass only while it runs. Stopped at first."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._passed if self._since is None else self._passed + time.monotonic() - self._since

    def start(self) -> None:
        self._since = time.monotonic()

    def stop(self) -> None:
        self._passed, self._since = self(), None


@runtime_checkable
class Divisible(Protocol):
    """A contender that can be stopped between two steps, while its clock stands still."""

    name: str
    clock: Stopwatch

    @property
    def machinery(self) -> object:
        """What it runs on: of those with the same, one runs to its end before the next begins."""
        ...

    def parts(self, workload: Workload) -> Parts:
        """One run, a step each time it is asked to go on. Raises as `Contender.run` does."""
        ...


Done = Callable[[Divisible, Measurement | Exception], None]


@dataclass(slots=True)
class _Lane:
    """Contenders that share their machinery."""

    waiting: deque[Divisible]
    size: int  # as many slices a round, so that all lanes end together
    running: tuple[Divisible, Parts] | None = None

    def go_on(self, workload: Workload, done: Done) -> None:
        until = time.monotonic() + SLICE * self.size
        while time.monotonic() < until and (self.running is not None or self.waiting):
            if self.running is None:
                contender = self.waiting.popleft()
                self.running = contender, contender.parts(workload)
            contender, parts = self.running
            contender.clock.start()
            try:
                while time.monotonic() < until:
                    next(parts)
            except StopIteration as end:
                self.running = None
                done(contender, end.value)
            except Exception as error:  # noqa: BLE001  a failure is this contender's own
                self.running = None
                done(contender, error)
            finally:
                contender.clock.stop()


def run_side_by_side(contenders: Iterable[Divisible], workload: Workload, done: Done) -> None:
    """Run each once, in the order given among those that share their machinery.

    done: takes each contender's measurement, or what it failed with.
    """
    lanes: dict[int, _Lane] = {}
    for contender in contenders:
        lane = lanes.setdefault(id(contender.machinery), _Lane(deque(), 0))
        lane.waiting.append(contender)
        lane.size += 1
    while lanes:
        for key, lane in list(lanes.items()):
            lane.go_on(workload, done)
            if lane.running is None and not lane.waiting:
                del lanes[key]
