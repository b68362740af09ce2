"""How one response looks at any moment, and the events that tell how it comes about."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from resispec.engine.outputs import FinishReason, RequestOutput
from resispec.engine.request import Request

from ..generation import Collected
from ..logprobs import LogprobFormat
from ..schemas.response import (
    Event,
    IncompleteDetails,
    LifecycleEvent,
    LifecycleType,
    Response,
    ResponseError,
    ResponseUsage,
    TextConfig,
)
from ..schemas.response_tools import FunctionToolBody, ItemStatus, NamedFunctionBody
from ..schemas.responses import ResponsesRequest, TextFormat
from ..schemas.usage import MetricsBody, UsageBody
from ..tools.formats import ToolFormat
from .items import OutputItems
from .store import Turn

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

    request: what the engine was asked, for the values that were used. form: how its calls are written;
    None: it calls nothing. logprobs: how to show them; None: not.
    """

    def __init__(
        self,
        response_id: str,
        model: str,
        body: ResponsesRequest,
        request: Request,
        form: ToolFormat | None,
        logprobs: LogprobFormat | None,
        *,
        store: bool,
    ) -> None:
        self.id = response_id
        self._model = model
        self._body = body
        self._sampling = request.sampling
        wanted = (body.text.format if body.text else None) or TextFormat(type="text")
        self._format = wanted.model_dump(by_alias=True, exclude_none=True)
        self._store = store
        self._created = int(time.time())
        self._numbers = itertools.count()
        self._items = OutputItems(response_id.removeprefix("resp_"), form, logprobs, self._numbers)

    def response(self, ending: Ending | None) -> Response:
        """The response with what there is of it so far; no ending: it is under way."""
        asked = self._body.asked_tools
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
            output=self._items.bodies(_item_status(ending)),
            parallel_tool_calls=asked.several,
            previous_response_id=self._body.previous_response_id,
            store=self._store,
            temperature=self._sampling.temperature,
            text=TextConfig(format=self._format),
            tool_choice=asked.choice if asked.named is None else NamedFunctionBody(name=asked.named),
            tools=[
                FunctionToolBody(
                    name=one.name,
                    description=one.description,
                    parameters=one.parameters,
                    strict=bool(one.strict),
                )
                for one in asked.functions
            ],
            top_p=self._sampling.top_p,
            usage=ResponseUsage.of(ending.usage) if ending is not None and ending.usage else None,
            metrics=ending.metrics if ending else None,
        )

    def turn(self) -> Turn:
        """The answer as chat templates expect it back."""
        return self._items.turn()

    def begin(self) -> Iterator[Event]:
        """The events before anything was written."""
        nothing = self.response(None)
        yield self._lifecycle("response.created", nothing)
        yield self._lifecycle("response.in_progress", nothing)

    def feed(self, output: RequestOutput) -> list[Event]:
        """Take in what was written further; its events."""
        return list(self._items.feed(output))

    def end(self, ending: Ending) -> list[Event]:
        """Take in that nothing follows; the last events."""
        events = list(self._items.end(_item_status(ending)))
        return [*events, self._lifecycle(_LAST_EVENT[ending.status], self.response(ending))]

    def _lifecycle(self, kind: LifecycleType, response: Response) -> Event:
        return LifecycleEvent(type=kind, sequence_number=next(self._numbers), response=response)


def _item_status(ending: Ending | None) -> ItemStatus:
    if ending is None:
        return "in_progress"
    return "completed" if ending.status == "completed" else "incomplete"
