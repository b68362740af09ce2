"""How one response looks at any moment, and the events that tell how it comes about."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from resispec.engine.outputs import FinishReason, RequestOutput, TokenLogprobs
from resispec.engine.request import Request

from ..generation import Collected
from ..logprobs import LogprobFormat
from ..schemas.logprobs import ContentLogprob
from ..schemas.response import (
    Event,
    IncompleteDetails,
    ItemEvent,
    ItemStatus,
    LifecycleEvent,
    LifecycleType,
    OutputMessage,
    OutputText,
    PartEvent,
    Response,
    ResponseError,
    ResponseUsage,
    TextConfig,
    TextDeltaEvent,
    TextDoneEvent,
)
from ..schemas.responses import ResponsesRequest, TextFormat
from ..schemas.usage import MetricsBody, UsageBody

CANCELLED = "cancelled"
"""Why a sequence was aborted whose response was cancelled."""


EndStatus = Literal["completed", "incomplete", "cancelled", "failed"]

_LAST_EVENT: dict[EndStatus, LifecycleType] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",  # there is no event of its own; the response says that it is
    "failed": "response.failed",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ended, and its figures."""

    status: EndStatus
    at: int  # seconds since the epoch
    usage: UsageBody | None = None
    metrics: MetricsBody | None = None
    incomplete: IncompleteDetails | None = None
    error: ResponseError | None = None


def ending_of(collected: Collected, usage: UsageBody, metrics: MetricsBody | None) -> Ending:
    """The ending that a finished sequence means."""
    now = int(time.time())
    if collected.finish_reason is FinishReason.STOP:
        return Ending("completed", now, usage, metrics)
    if collected.finish_reason is FinishReason.LENGTH:
        return Ending("incomplete", now, usage, metrics, IncompleteDetails(reason="max_output_tokens"))
    if collected.stop_reason == CANCELLED:
        return Ending("cancelled", now, usage, metrics)
    timed_out = collected.stop_reason == "request_timeout"
    reason = IncompleteDetails(reason="request_timeout" if timed_out else "server_shutdown")
    return Ending("incomplete", now, usage, metrics, reason)


class ResponseWriter:
    """Writes one response.

    request: what the engine was asked, for the values that were used. logprobs: how to show them; None: not.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        body: ResponsesRequest,
        request: Request,
        logprobs: LogprobFormat | None,
        *,
        store: bool,
    ) -> None:
        self.id = response_id
        self._item_id = f"msg_{response_id.removeprefix('resp_')}"
        self._model = model
        self._body = body
        self._sampling = request.sampling
        wanted = (body.text.format if body.text else None) or TextFormat(type="text")
        self._format = wanted.model_dump(by_alias=True, exclude_none=True)
        self._logprobs = logprobs
        self._store = store
        self._created = int(time.time())
        self._numbers = itertools.count()

    def response(self, collected: Collected, ending: Ending | None) -> Response:
        """The response with what there is of it so far; no ending: it is under way."""
        return Response(
            id=self.id,
            created_at=self._created,
            completed_at=ending.at if ending is not None and ending.status == "completed" else None,
            status=ending.status if ending else "in_progress",
            error=ending.error if ending else None,
            incomplete_details=ending.incomplete if ending else None,
            instructions=self._body.instructions,
            max_output_tokens=self._body.max_output_tokens,
            metadata=self._body.metadata or {},
            model=self._model,
            output=[self._item(collected, ending)] if collected.text or ending else [],
            previous_response_id=self._body.previous_response_id,
            store=self._store,
            temperature=self._sampling.temperature,
            text=TextConfig(format=self._format),
            top_p=self._sampling.top_p,
            usage=ResponseUsage.of(ending.usage) if ending is not None and ending.usage else None,
            metrics=ending.metrics if ending else None,
        )

    def begin(self) -> Iterator[Event]:
        """The events before the first text."""
        nothing = self.response(Collected(), None)
        yield self._lifecycle("response.created", nothing)
        yield self._lifecycle("response.in_progress", nothing)
        yield ItemEvent(
            type="response.output_item.added",
            sequence_number=next(self._numbers),
            item=OutputMessage(id=self._item_id, status="in_progress", content=[]),
        )
        yield PartEvent(
            type="response.content_part.added",
            sequence_number=next(self._numbers),
            item_id=self._item_id,
            part=OutputText(text="", logprobs=[]),
        )

    def delta(self, output: RequestOutput) -> Event:
        """The event for further text."""
        return TextDeltaEvent(
            sequence_number=next(self._numbers),
            item_id=self._item_id,
            delta=output.text,
            logprobs=self._scores(output.logprobs),
        )

    def end(self, collected: Collected, ending: Ending) -> Iterator[Event]:
        """The events after the last text."""
        item = self._item(collected, ending)
        yield TextDoneEvent(
            sequence_number=next(self._numbers),
            item_id=self._item_id,
            text=collected.text,
            logprobs=item.content[0].logprobs,
        )
        yield PartEvent(
            type="response.content_part.done",
            sequence_number=next(self._numbers),
            item_id=self._item_id,
            part=item.content[0],
        )
        yield ItemEvent(type="response.output_item.done", sequence_number=next(self._numbers), item=item)
        yield self._lifecycle(_LAST_EVENT[ending.status], self.response(collected, ending))

    def _lifecycle(self, kind: LifecycleType, response: Response) -> Event:
        return LifecycleEvent(type=kind, sequence_number=next(self._numbers), response=response)

    def _scores(self, scores: Sequence[TokenLogprobs]) -> list[ContentLogprob]:
        return [] if self._logprobs is None else self._logprobs.chat(scores).content

    def _item(self, collected: Collected, ending: Ending | None) -> OutputMessage:
        status: ItemStatus = "in_progress" if ending is None else "incomplete"
        if ending is not None and ending.status == "completed":
            status = "completed"
        text = OutputText(text=collected.text, logprobs=self._scores(collected.logprobs))
        return OutputMessage(id=self._item_id, status=status, content=[text])
