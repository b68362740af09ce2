"""A running server as a contender."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..contenders import SETTLED, BenchError
from ..measurement import Measurement
from ..workload import Workload
from .client import Exchange, exchange
from .load import closed_loop, open_loop


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and what it wants to hear."""

    url: str  # without /v1
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    chat: bool = False  # texts as chat messages; else token ids as completions
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields beyond OpenAI's, in every request
    full_length: bool = True  # answers must be as long as asked


class ServedContender:
    """Sends a workload to a server and notes when the pieces of its answers come.

    busy: called around each run with True and False, to wake a server that sleeps between runs.
    memory: its resident bytes after a run.
    phases: seconds spent in each phase of its steps, since its start; empty for one that does not tell.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        busy: Callable[[bool], None] = lambda _: None,
        memory: Callable[[], int | None] = lambda: None,
        phases: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._busy = busy
        self._memory = memory
        self._phases = phases

    def takes(self, workload: Workload) -> bool:  # noqa: ARG002
        return True

    def run(self, workload: Workload) -> Measurement:
        self._busy(True)
        try:
            before = self._phases()
            seconds, answers = asyncio.run(self._run(workload))
            spent = {name: total - before.get(name, 0.0) for name, total in self._phases().items()}
            measured = measurement(seconds, answers, self._memory(), spent)
        finally:
            self._busy(False)
        asked = workload.tokens * workload.num_requests
        if self._endpoint.full_length and measured.tokens != asked:
            raise BenchError(f"{measured.tokens} tokens came instead of {asked}")
        return measured

    async def _run(self, workload: Workload) -> tuple[float, list[Exchange]]:
        began = time.perf_counter()
        if workload.rate is not None:
            answers = await open_loop(
                lambda number, due: self._send(workload, number, due),
                workload.num_requests,
                workload.rate,
                seed=0,
            )
        elif workload.intruder is None:
            answers = await closed_loop(
                lambda number: self._send(workload, number), workload.num_requests, workload.batch
            )
        else:
            answers = await self._disturbed(workload)
        # What the client makes of the answers, once they are there, is not the server's time.
        return max(answer.arrivals[-1] for answer in answers) - began, answers

    async def _disturbed(self, workload: Workload) -> list[Exchange]:
        """A closed loop into which a long prompt comes once; its own answer is not counted."""
        reads, settled = 0, asyncio.Event()

        def on_read() -> None:
            nonlocal reads
            reads += 1
            if reads == SETTLED * workload.batch:
                settled.set()

        async def intrude() -> None:
            await settled.wait()
            await self._exchange(*self._request(workload, workload.intruder, None, max_tokens=2))

        intruder = asyncio.create_task(intrude())
        try:
            answers = await closed_loop(
                lambda number: self._send(workload, number, on_read=on_read),
                workload.num_requests,
                workload.batch,
            )
            if not settled.is_set():
                raise BenchError(
                    "the answers were over before the long prompt could come; ask for more tokens"
                )
            await intruder
        finally:
            intruder.cancel()
        return answers

    async def _send(
        self,
        workload: Workload,
        number: int,
        due: float | None = None,
        on_read: Callable[[], None] = lambda: None,
    ) -> Exchange:
        ids = workload.requests[number] if workload.requests else None
        text = workload.texts[number] if workload.texts else None
        path, body = self._request(workload, ids, text, workload.tokens)
        return await self._exchange(path, body, due, on_read)

    async def _exchange(
        self,
        path: str,
        body: Mapping[str, Any],
        due: float | None = None,
        on_read: Callable[[], None] = lambda: None,
    ) -> Exchange:
        endpoint = self._endpoint
        return await exchange(endpoint.url, path, body, endpoint.headers, due=due, on_read=on_read)

    def _request(
        self, workload: Workload, ids: Sequence[int] | None, text: str | None, max_tokens: int
    ) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": self._endpoint.model}
        if self._endpoint.chat:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
        else:
            path, body["prompt"] = "/v1/completions", text if ids is None else list(ids)
        body |= {"max_tokens": max_tokens, "temperature": workload.temperature, **self._endpoint.extra}
        return path, body


def measurement(
    seconds: float, answers: Sequence[Exchange], memory: int | None, phases: Mapping[str, float]
) -> Measurement:
    """Of some answers that took ``seconds`` together. Reads are what is counted as deliveries.

    phases: seconds in the server's steps; what is left of the time goes to "other", if there are some.
    """
    tokens = sum(answer.tokens for answer in answers)
    gaps = tuple(gap for answer in answers for gap in answer.gaps)
    return Measurement(
        tokens=tokens,
        seconds=seconds,
        first_token_seconds=tuple(answer.first_token_seconds for answer in answers),
        decoded_tokens=tokens - len(answers),
        deliveries=len(gaps),
        decode_steps=0,
        decode_seconds=0.0,
        gap_seconds=gaps,
        memory=memory,
        phases={**phases, "other": max(0.0, seconds - sum(phases.values()))} if phases else {},
    )
