"""The contract of a contender, and ResiSpec's own engine as one."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Protocol

from ..budget.record import AcceptanceRecord
from ..engine import Engine
from ..outputs import FinishReason, RequestMetrics, StepResult
from ..request import Request, SamplingParams, SpeculationParams, StructuredSpec
from .measurement import Measurement
from .simulated import simulated_goodput
from .turns import Parts, Stopwatch
from .workload import Workload

SETTLED = 6  # deliveries to each request in flight before a long prompt comes in between
PLAIN = "plain"
SPECULATIVE = "speculative"
TRANSFORMERS = "transformers"


class BenchError(Exception):
    """A contender that cannot run a workload, or did not do what was asked."""


class Contender(Protocol):
    """Something that generates. Loaded and ready; a failed run must not spoil the next."""

    name: str

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one of those it is measured with."""
        ...

    def run(self, workload: Workload) -> Measurement:
        """Raises any exception if it fails, BenchError if the answers are not as long as asked."""
        ...


class FailedContender:
    """One that could not be loaded, in its place among the others: fails with the same reason each time."""

    def __init__(self, name: str, reason: Exception) -> None:
        self.name = name
        self._reason = reason

    def takes(self, workload: Workload) -> bool:
        return not self.name.startswith(TRANSFORMERS) or (workload.batch == 1 and not workload.forms)

    def run(self, workload: Workload) -> Measurement:  # noqa: ARG002
        raise self._reason


class EngineContender:
    """An engine, driven as the server drives it: requests are added while others run."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        speculation: SpeculationParams | None = None,
        *,
        clock: Stopwatch | None = None,
        seeds: bool = False,
        simulates: bool = False,
    ) -> None:
        """speculation: what every request asks for; None: what the engine chooses.

        clock: the engine's own, for runs in parts.
        seeds: give each request a seed, and so the same trees however many others run.
        simulates: say of each run, too, what the simulator makes of it.
        """
        self.name = name
        self.clock = clock or Stopwatch()
        self._engine = engine
        self._speculation = speculation or SpeculationParams()
        self._seeds = seeds
        self._simulates = simulates
        self._ids = count()
        self._runs = count()
        self._salt = ""

    @property
    def machinery(self) -> Engine:
        return self._engine

    def takes(self, workload: Workload) -> bool:  # noqa: ARG002
        return True

    def run(self, workload: Workload) -> Measurement:
        parts = self.parts(workload)
        self.clock.start()
        try:
            while True:
                next(parts)
        except StopIteration as end:
            measurement: Measurement = end.value
            return measurement
        finally:
            self.clock.stop()

    def parts(self, workload: Workload) -> Parts:
        """One step each time, while the clock runs."""
        engine, tally = self._engine, _Tally(self.clock, workload.batch)
        # What sources learn from earlier runs of the same prompts would be the answers themselves.
        self._salt = f"{self.name} {next(self._runs)}"
        engine.controller.take_record()
        forms = workload.forms or (None,) * len(workload.requests)
        waiting = deque(zip(workload.requests, forms, strict=True))
        live: set[str] = set()
        intruder = None if workload.intruder is None else self._request(workload.intruder, None, workload, 2)
        began = self.clock()
        try:
            while waiting or live:
                while waiting and len(live) < workload.batch:
                    request = self._request(*waiting.popleft(), workload)
                    engine.add(request)
                    live.add(request.request_id)
                if intruder is not None and tally.deliveries >= SETTLED * workload.batch:
                    engine.add(intruder)
                    live.add(intruder.request_id)
                    tally.ignored, intruder = intruder.request_id, None
                step_began = time.perf_counter()
                result = engine.step()
                tally.add(result, time.perf_counter() - step_began)
                live -= {output.request_id for output in result.outputs if output.finish_reason is not None}
                yield
        except Exception:
            for request_id in live:
                engine.abort(request_id)
            while engine.has_work:
                engine.step()
            raise
        if intruder is not None:
            raise BenchError("the answers were over before the long prompt could come; ask for more tokens")
        measurement = tally.measurement(self.clock() - began, engine.controller.take_record())
        if tally.error or (not forms[0] and measurement.tokens != workload.tokens * len(forms)):
            reason = tally.error or "requests ended early; the context may be too short"
            raise BenchError(f"{measurement.tokens} tokens came instead of all: {reason}")
        if workload.forms:  # an answer that ends where it likes takes as long as it likes
            measurement = replace(measurement, generation_seconds=())
        if not self._simulates:
            return measurement
        simulated = simulated_goodput(engine, workload, self._speculation, measurement.record)
        return replace(measurement, simulated=simulated)

    def _request(
        self,
        prompt: tuple[int, ...],
        form: StructuredSpec | None,
        workload: Workload,
        max_tokens: int | None = None,
    ) -> Request:
        number = next(self._ids)
        sampling = SamplingParams(
            temperature=workload.temperature,
            max_tokens=max_tokens or workload.tokens,
            ignore_eos=form is None,
            structured=form,
            seed=number if self._seeds else None,
        )
        return Request(
            str(number),
            prompt,
            sampling,
            self._speculation,
            cache_salt=self._salt,
            arrival_time=self.clock(),
        )


class _Tally:
    """Adds up the steps of one run."""

    def __init__(self, clock: Callable[[], float], batch: int) -> None:
        self._clock = clock
        self._batch = batch
        self.tokens: Counter[str] = Counter()  # by request
        self.deliveries = 0
        self.first_token_seconds: list[float] = []
        self.decode_steps: list[float] = []
        self.decode_tokens = 0
        self.drafts = 0
        self.draft_nodes = 0
        self.phases: defaultdict[str, float] = defaultdict(float)
        self.grammar_seconds = 0.0
        self.full_tokens = 0  # of steps that only decode, for as many requests as may be in flight
        self.full_seconds = 0.0
        self.error: str | None = None
        self.ignored: str | None = None  # a request that is not counted, only felt by the others
        self.gaps: list[float] = []
        self.finished: dict[int, RequestMetrics] = {}  # by the request's number
        self._last: dict[str, float] = {}  # when a request got something

    def add(self, result: StepResult, seconds: float) -> None:
        now = self._clock()
        for output in result.outputs:
            if output.request_id == self.ignored or not output.token_ids:
                continue
            if (last := self._last.get(output.request_id)) is not None:
                self.deliveries += 1
                self.gaps.append(now - last)
            self._last[output.request_id] = now
            self.tokens[output.request_id] += len(output.token_ids)
        for output in result.outputs:
            if output.finish_reason is FinishReason.ERROR:
                self.error = output.error
            if output.metrics is not None and output.request_id != self.ignored:
                self.finished[int(output.request_id)] = output.metrics
        stats = result.stats
        if self.ignored is None:  # the only ones whose first token comes later are not ours
            self.first_token_seconds += stats.time_to_first_token
        if not stats.prompt_tokens:
            self.decode_steps.append(seconds)
            self.decode_tokens += stats.generation_tokens
            if sum(bool(output.token_ids) for output in result.outputs) == self._batch:
                self.full_tokens += stats.generation_tokens
                self.full_seconds += seconds
        for part in stats.speculation:
            self.drafts += part.num_drafts
            self.draft_nodes += part.num_draft_tokens
        for phase, spent in stats.phase_seconds:
            self.phases[phase] += spent
            seconds -= spent
        self.phases["other"] += seconds
        self.grammar_seconds += stats.grammar_seconds

    def measurement(self, seconds: float, record: AcceptanceRecord) -> Measurement:
        tokens = self.tokens.total()
        finished = [metrics for _, metrics in sorted(self.finished.items())]
        return Measurement(
            tokens=tokens,
            seconds=seconds,
            first_token_seconds=tuple(self.first_token_seconds),
            decoded_tokens=tokens - len(self.first_token_seconds),
            deliveries=self.deliveries,
            decode_steps=len(self.decode_steps),
            decode_seconds=sum(self.decode_steps),
            decode_tokens=self.decode_tokens,
            drafts=self.drafts,
            draft_nodes=self.draft_nodes,
            gap_seconds=tuple(self.gaps),
            phases=dict(self.phases),
            generation_seconds=tuple(metrics.generation_time_ms / 1e3 for metrics in finished),
            speedups=tuple(
                metrics.speculation.speedup if metrics.speculation else None for metrics in finished
            ),
            record=record,
            grammar_seconds=self.grammar_seconds,
            full_tokens=self.full_tokens,
            full_seconds=self.full_seconds,
        )
