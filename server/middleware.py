"""What happens around every request: its id, its log line, keys, and the size of its body.

Plain ASGI, because a wrapper that buffers would delay streams and hide disconnects.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import CLIENT_CLOSED_REQUEST, ApiError, internal_error
from .keys import KeyRing
from .logging import log_fields

logger = logging.getLogger(__name__)

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/version", "/load"})
PAGE_FILES = "/page/"  # below it lies what the page is made of, and nothing of anybody's
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_public(path: str) -> bool:
    """Whether a path needs no key. What it answers is the same for everybody."""
    return path in PUBLIC_PATHS or path.startswith(PAGE_FILES)


class RequestLog:
    """Gives each request an id (the client's ``X-Request-Id`` if it is a plain word) and a log line.

    Routes add to the line through ``request.state.log``, a dict; ``request.state.arrived`` is when
    it came, in `time.monotonic` seconds. A crash becomes a 500 with an OpenAI body.

    on_failure: told the status of refused requests, and 500 for a crash.
    """

    def __init__(self, app: ASGIApp, on_failure: Callable[[int], None]) -> None:
        self._app = app
        self._on_failure = on_failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        fields: dict[str, object] = {}
        started = time.monotonic()
        scope.setdefault("state", {}).update(request_id=request_id, log=fields, arrived=started, key="")
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            self._on_failure(500)
            log_fields(logger, logging.ERROR, "a request crashed", {"request_id": request_id}, exc_info=True)
            if status is not None:
                raise  # half an answer is out; the server cuts the connection
            await internal_error().response()(scope, receive, send_with_id)
        else:
            if status is not None and 400 <= status < 500 and status != CLIENT_CLOSED_REQUEST:
                self._on_failure(status)
        finally:
            log_fields(
                logger,
                logging.DEBUG if is_public(scope["path"]) else logging.INFO,
                "request",
                {
                    "request_id": request_id,
                    "method": scope["method"],
                    "path": scope["path"][:256],
                    "status": status,
                    "ms": round((time.monotonic() - started) * 1000, 1),
                    **fields,
                },
            )


class ApiKeys:
    """Refuses requests without a key of ``ring``, on all but the public paths.

    Who it was is in ``request.state.key``, a name that tells nothing about the key.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing) -> None:
        self._app = app
        self._ring = ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_public(scope["path"]) and not self._identify(scope):
            error = ApiError(
                401,
                "Send a valid API key as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        name = self._ring.identify(key.strip())
        if scheme.lower() != "bearer" or name is None:
            return False
        scope["state"]["key"] = scope["state"]["log"]["key"] = name
        return True


class BodyLimit:
    """Refuses bodies of more than ``max_bytes``, announced or not, without reading the rest."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._max_bytes:
            await self._too_large().response()(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_limited, send)

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"The body is longer than the {self._max_bytes} bytes allowed", code="body_too_large"
        )
