"""The OpenAPI document: what FastAPI finds, and what it cannot know about errors, streams and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .middleware import PUBLIC_PATHS
from .schemas.chat import ChatChunk
from .schemas.completions import Completion
from .schemas.errors import ErrorBody
from .schemas.response import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    ItemEvent,
    LifecycleEvent,
    PartEvent,
    TextDeltaEvent,
    TextDoneEvent,
)

Responses = dict[int | str, dict[str, Any]]
Links = dict[str, dict[str, Any]]

ERRORS = {
    400: "The request is malformed, or asks for something that this server does not do.",
    401: "A valid API key is missing.",
    404: "There is no such model or object.",
    413: "The body is too long.",
    429: "The key has used its share; try again after `Retry-After` seconds.",
    500: "The server failed; its log says why.",
    503: "The queue is full or the server is shutting down; try again after `Retry-After` seconds.",
}
GENERATION = (400, 404, 413, 429, 500, 503)
EVENTS = (
    LifecycleEvent,
    ItemEvent,
    PartEvent,
    TextDeltaEvent,
    TextDoneEvent,
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
)
_REF = "#/components/schemas/{model}"

_MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
EXAMPLES: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": _MESSAGES, "max_completion_tokens": 32, "temperature": 0.7, "seed": 1},
    "CompletionRequest": {"prompt": "Once upon a time", "max_tokens": 16, "stop": ["\n"]},
    "ResponsesRequest": {"input": "Why is the sky blue?", "max_output_tokens": 32},
    "TokenizeRequest": {"prompt": "Hello"},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
}


def errors(*statuses: int) -> Responses:
    """For a route's ``responses``: the errors it answers with."""
    return {status: {"model": ErrorBody, "description": ERRORS[status]} for status in statuses}


def answers(
    whole: type[BaseModel], *events: type[BaseModel], done: bool, links: Links | None = None
) -> Responses:
    """For a route that generates: a JSON body, or server-sent events when ``stream`` is true.

    done: whether the stream ends with ``data: [DONE]``. links: what can be done with the answer.
    """
    kinds = [{"$ref": _REF.format(model=event.__name__)} for event in events]
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": kinds[0] if len(kinds) == 1 else {"oneOf": kinds},
    }
    event = {
        "type": "object",
        "description": "A server-sent event; its data are JSON"
        + (", the last one's `[DONE]`." if done else "."),
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [{"const": "[DONE]"}, data]} if done else data,
        },
        "required": ["data"],
    }
    ok = {
        "model": whole,
        "description": "The answer; with `stream`, its events.",
        "content": {"text/event-stream": {"schema": event}},
        "links": links or {},
    }
    return {200: ok, **errors(*GENERATION)}


def link(operation: str, parameter: str) -> dict[str, Any]:
    """A link from an answer to an operation on it, whose ``parameter`` is the answer's id."""
    return {"operationId": operation, "parameters": {parameter: "$response.body#/id"}}


def install(app: FastAPI, *, keys: bool, ignore_unknown: bool) -> None:
    """Make ``app`` publish the document. keys: clients need one. ignore_unknown: other fields may be sent."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, keys=keys, ignore_unknown=ignore_unknown)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def _document(app: FastAPI, *, keys: bool, ignore_unknown: bool) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    _add_schemas(schemas, (ChatChunk, Completion, *EVENTS))
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors, which are not ours
        schemas.pop(name, None)
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    if not ignore_unknown:
        for schema in schemas.values():
            if schema.get("additionalProperties") is True:
                schema["additionalProperties"] = {"type": "null"}  # null is the same as absent
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if keys and path not in PUBLIC_PATHS:
                operation["security"] = [{"key": []}]
                body = {"schema": {"$ref": _REF.format(model="ErrorBody")}}
                operation["responses"]["401"] = {
                    "description": ERRORS[401],
                    "content": {"application/json": body},
                }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _add_schemas(schemas: dict[str, Any], models: Sequence[type[BaseModel]]) -> None:
    _, found = models_json_schema([(model, "serialization") for model in models], ref_template=_REF)
    for name, schema in found["$defs"].items():
        schemas.setdefault(name, schema)
