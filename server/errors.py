"""Errors as OpenAI clients expect them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from resispec.engine.request import RequestError

CLIENT_CLOSED_REQUEST = 499  # nobody reads this answer; the status is for the log

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """An answer that is an error. ``param`` names the field at fault; ``code`` is for programs."""

    def __init__(
        self,
        status_code: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status_code, message, dict(headers) if headers else None)
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body, also the payload of an error event in a stream."""
        return error_body(self.status_code, str(self.detail), self.param, self.code)

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code=code)


def invalid_request(exc: RequestError) -> ApiError:
    """The engine's refusal of a request, as a 400."""
    return ApiError(400, exc.message, param=exc.param)


def internal_error() -> ApiError:
    """A fault of the server's own; the log has the exception, the answer has not."""
    return ApiError(500, "The server failed on this request; its log says why.", code="internal_error")


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error body; its ``type`` follows from the status."""
    message, param = _sendable(message), None if param is None else _sendable(param)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _sendable(text: str) -> str:
    """``text`` with what cannot be encoded spelled out: a user's name for a field may hold anything."""
    return text.encode(errors="backslashreplace").decode()


def from_validation(exc: RequestValidationError) -> ApiError:
    """The first fault that the schema found, as a 400 that names the field and its value."""
    error = exc.errors()[0]
    where, *path = error["loc"]
    if where == "body":
        # Names of union branches and validators are no field of the user's.
        path = [part for part in path if isinstance(part, int) or part.isidentifier()]
    if error["type"] == "json_invalid":
        place = error["loc"][-1] if isinstance(error["loc"][-1], int) else 0
        fault = error.get("ctx", {}).get("error", "malformed")
        return invalid(None, f"The body is not valid JSON: {fault} at character {place}")
    if not path:
        return invalid(None, "The body must be a JSON object, sent with Content-Type: application/json")
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    value = error.get("input")
    shown = (
        f", got {value!r}" if isinstance(value, str | int | float | None) and len(repr(value)) < 80 else ""
    )
    if error["type"] == "missing":
        return invalid(name, "this field is required", "missing_required_parameter")
    code = error["type"] if error["type"].endswith("_parameter") else "invalid_value"
    return invalid(name, error["msg"].removeprefix("Value error, ") + shown, code)


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make ``app`` answer refusals with an OpenAI body; `RequestLog` does it for crashes.

    routes: all that ``app`` has, to name the methods of a path.
    """

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, exc: HTTPException) -> JSONResponse:
        if isinstance(exc, ApiError):
            return exc.response()
        headers = dict(exc.headers or {})
        if exc.status_code == 405 and (methods := _methods(routes, request.url.path)):
            headers["Allow"] = ", ".join(methods)
        return JSONResponse(error_body(exc.status_code, str(exc.detail)), exc.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, exc: RequestValidationError) -> JSONResponse:
        return from_validation(exc).response()

    @app.exception_handler(RequestError)
    async def request_error(_: Request, exc: RequestError) -> JSONResponse:
        return invalid_request(exc).response()


def _methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """All methods of ``path``; a router names those of the first route that it fits."""
    fitting = (route for route in routes if isinstance(route, Route) and route.path_regex.match(path))
    return sorted({method for route in fitting for method in route.methods or ()})
