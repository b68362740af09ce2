"""Times the phases of a step, on the device where they run."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Protocol

import torch


class PhaseClock(Protocol):
    """Marks the bounds between phases. Marking waits for nothing."""

    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        """Between each mark and the next. Waits for the last mark."""
        ...


class HostClock:
    """For a CPU, which has done what it was told when the call returns."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in pairwise(self._times)]


class CudaClock:
    """For a GPU, which works on while the host goes ahead: marks are events in its stream."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        self._events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._events)]


def phase_clock(device: torch.device) -> PhaseClock:
    return CudaClock() if device.type == "cuda" else HostClock()
