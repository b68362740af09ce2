"""What is timed is a step, not what comes before it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from resispec.engine.cost.measure import _time
from resispec.models.device.cpu import CpuDevice

CPU = torch.device("cpu")


class FirstIsSlow:
    """A step whose kernels are compiled when it is first run."""

    def __init__(self, compiling: float, running: float) -> None:
        self.calls = 0
        self._compiling, self._running = compiling, running

    def __call__(self) -> None:
        self.calls += 1
        time.sleep(self._compiling if self.calls == 1 else self._running)


@pytest.mark.parametrize("compiles", [True, False])
def test_compiling_is_not_taken_for_the_step(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "generates_kernels", compiles)
    step = FirstIsSlow(compiling=0.1, running=0.001)

    def prepare(tokens: int, context: int) -> Callable[[], object]:
        return step

    timed = _time([(1, False)], prepare, 8, None, 0.05, CPU)
    assert (timed[1, False] < 0.05) is compiles  # on a CPU the first run alone is past the time there is


def test_later_sizes_have_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's compiling does not use it up."""
    monkeypatch.setattr(CpuDevice, "generates_kernels", True)
    steps = {tokens: FirstIsSlow(compiling=0.1, running=0.001) for tokens in (1, 2, 4)}
    order = [(tokens, False) for tokens in steps]
    timed = _time(order, lambda tokens, _: steps[tokens], 8, None, 0.05, CPU)
    assert [tokens for tokens, _ in timed] == [1, 2, 4]
    assert all(seconds < 0.05 for seconds in timed.values())


def test_work_handed_over_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is idle when the clock starts, and when it stops."""
    events: list[str] = []
    monkeypatch.setattr(CpuDevice, "synchronize", lambda self: events.append("wait"))
    _time([(1, False)], lambda *_: lambda: events.append("run"), 8, None, 1.0, CPU)
    assert events == ["wait", "run", "wait"] * (len(events) // 3)
    assert len(events) >= 6
