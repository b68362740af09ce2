"""One HTTP request's sequences in the engine, merged into one stream of outputs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from resispec.engine.client import EngineClient
from resispec.engine.outputs import (
    FinishReason,
    RequestMetrics,
    RequestOutput,
    SpeculationMetrics,
    TokenLogprobs,
    Usage,
)
from resispec.engine.request import Request, RequestError

from .errors import ApiError


class Generation:
    """Runs ``requests`` together. Closing it aborts what is unfinished.

    Keeps the figures the answer reports: the latest usage, and the metrics of finished sequences.
    """

    def __init__(
        self,
        client: EngineClient,
        requests: Sequence[Request],
        watchers: Sequence[Callable[[int, RequestOutput], None]] = (),
    ) -> None:
        """watchers: told every (choice, news) of the engine as it is taken."""
        self._client = client
        self._watchers = watchers
        self._requests = requests
        # News of a choice; a text: why it was aborted here.
        self._news: asyncio.Queue[tuple[int, RequestOutput | RequestError | str]] = asyncio.Queue()
        self._aborts: list[Callable[[], None]] = []
        self.usages = [Usage(len(request.prompt_token_ids), 0) for request in requests]
        self.metrics: dict[int, RequestMetrics] = {}
        self.finish_reasons: dict[int, FinishReason] = {}
        self.failure: str | None = None  # what failed in the engine

    @property
    def speculation(self) -> list[SpeculationMetrics]:
        return [part.speculation for part in self.metrics.values() if part.speculation is not None]

    def start(self) -> None:
        """Queue every sequence in the engine. Raises RequestError for one whose id is in use."""
        for index, request in enumerate(self._requests):
            self._aborts.append(self._client.generate(request, partial(self._deliver, index)))

    def _deliver(self, index: int, news: RequestOutput | RequestError) -> None:
        self._news.put_nowait((index, news))

    async def outputs(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """(choice, news) as they come, until every sequence has finished.

        Raises RequestError or, for a sequence that failed in the engine, ApiError 500.
        """
        while len(self.finish_reasons) < len(self._requests):
            index, news = await self._news.get()
            if isinstance(news, RequestError):
                raise news
            if index in self.finish_reasons:
                continue  # aborted after its last output
            if isinstance(news, str):
                request_id = self._requests[index].request_id
                news = RequestOutput(request_id, "", (), self.usages[index], FinishReason.ABORT, news)
            if news.finish_reason is FinishReason.ERROR:
                self.failure = news.error or "The engine failed on this request"
                raise ApiError(500, self.failure, code="engine_error")
            self.usages[index] = news.usage
            if news.metrics is not None:
                self.metrics[index] = news.metrics
            if news.finish_reason is not None:
                self.finish_reasons[index] = news.finish_reason
            for watch in self._watchers:
                watch(index, news)
            yield index, news

    def abort(self, reason: str) -> None:
        """End every unfinished sequence with ``FinishReason.ABORT``, what it delivered kept.

        reason: what its ``stop_reason`` says.
        """
        for index, abort in enumerate(self._aborts):
            abort()
            self._news.put_nowait((index, reason))

    def close(self) -> None:
        """Stop everything. Idempotent."""
        for abort in self._aborts:
            abort()


@dataclasses.dataclass(slots=True)
class Collected:
    """Everything one choice delivered."""

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    text_ends: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, output: RequestOutput) -> None:
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.text_ends.extend(output.text_ends)
        self.logprobs.extend(output.logprobs)
        self.prompt_logprobs.extend(output.prompt_logprobs)
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason
