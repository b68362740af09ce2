"""How busy the server is, for ``GET /load``."""

from __future__ import annotations

from pydantic import BaseModel

from resispec.engine.outputs import StepStats

from .admission import Admission


class LoadBody(BaseModel):
    """``server_load`` is vLLM's name for the first figure; the others are those of the metrics."""

    server_load: int  # sequences in flight, those that wait included
    capacity: int  # sequences that may be in flight; more get 503
    num_requests_running: int  # sequences that took part in the engine's last step
    num_requests_waiting: int  # sequences in flight that did not
    kv_cache_usage_ratio: float  # of the target, in [0, 1]


class Load:
    """Remembers the engine's last step."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._last = StepStats()

    def observe_step(self, stats: StepStats) -> None:
        self._last = stats

    def body(self) -> LoadBody:
        in_flight = self._admission.in_flight
        # An idle engine makes no steps, so that its last one may be about sequences that are gone.
        running = min(self._last.num_running, in_flight)
        return LoadBody(
            server_load=in_flight,
            capacity=self._admission.capacity,
            num_requests_running=running,
            num_requests_waiting=in_flight - running,
            kv_cache_usage_ratio=self._last.kv_usage_target if in_flight else 0.0,
        )
