"""The body of every answer that is an error."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None  # the field at fault
    code: str | None  # for programs


class ErrorBody(BaseModel):
    error: ErrorDetail
