"""``resispec top``: asks a server for its metrics again and again and shows what happens."""

from __future__ import annotations

from typing import Annotated

import typer

from resispec.engine.config import ConfigError

from ..exit_codes import ExitCode, failed


def top(
    url: Annotated[str, typer.Argument(help="The server's address.")] = "http://localhost:8000",
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print once, end.")] = False,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="OPENAI_API_KEY", help="Where metrics need one.", show_default=False),
    ] = None,
) -> None:
    """Show a running server's live figures: requests, tokens, latency, memory, speculation, steps.

    Ends with Ctrl-C. Where the output is no terminal, it prints once.
    """
    from .watch import watch

    try:
        watch(url, api_key, interval, once=once)
    except ConfigError as exc:
        raise failed(exc, ExitCode.ERROR) from None
    except KeyboardInterrupt:
        return
