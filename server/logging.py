"""Structured logs: one JSON object a line, never a prompt or an answer."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

FIELDS = "fields"


class JsonFormatter(logging.Formatter):
    """A record as JSON: time, level, logger, message, the given fields, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(level: str) -> None:
    """Send everything at ``level`` and above to stderr; other libraries' chatter from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("resispec").setLevel(level.upper())


def log_fields(
    logger: logging.Logger, level: int, message: str, fields: Mapping[str, object], *, exc_info: bool = False
) -> None:
    """Log ``message`` with ``fields`` as keys of its JSON object."""
    logger.log(level, message, exc_info=exc_info, extra={FIELDS: fields})
