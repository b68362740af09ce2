"""What the exit codes of ``resispec`` mean."""

from __future__ import annotations

import sys
from enum import IntEnum

import typer


class ExitCode(IntEnum):
    """Distinct, so that whoever starts the server knows whether trying again can help."""

    OK = 0
    ERROR = 1  # also: the engine died
    CONFIGURATION = 2
    MODEL = 3
    ADDRESS = 4  # the port is in use, or the host is not this machine's


def failed(exc: Exception, code: ExitCode) -> typer.Exit:
    """Say on standard error what went wrong; raise the result to exit."""
    print(f"resispec: {exc}", file=sys.stderr)  # noqa: T201
    return typer.Exit(code)
