"""How long a request may take: the server's limit, or a shorter one that the client sends."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Request

from .state import State

ABORT_REASON = "request_timeout"
"""The ``stop_reason`` of an answer that its deadline ended."""


async def set_deadline(
    request: Request,
    state: State,
    seconds: Annotated[
        float | None,
        Header(
            alias="X-Request-Timeout",
            gt=0,
            allow_inf_nan=False,
            description="Seconds after which the answer ends with what there is of it.",
        ),
    ] = None,
) -> None:
    """Note in ``request.state.deadline`` when the answer has to end, in `time.monotonic` seconds, or None.

    Counted from the request's arrival: waiting in the queue is part of it.
    """
    limits = [limit for limit in (seconds, state.settings.request_timeout) if limit]
    request.state.deadline = request.state.arrived + min(limits) if limits else None
