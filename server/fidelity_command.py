"""``resispec fidelity``: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from resispec.engine.config import ConfigError

from .exit_codes import ExitCode, failed


def fidelity(
    target: Annotated[
        str, typer.Option(help="'default', a hub id, a local folder or a GGUF file.")
    ] = "default",
    formats: Annotated[
        str, typer.Option(help="Of bfloat16, float16, int8, int4, with commas.")
    ] = "bfloat16,int8,int4",
    prompts: Annotated[int, typer.Option(help="Built-in prompts to write answers to.")] = 24,
    tokens: Annotated[int, typer.Option(help="Of each answer.")] = 32,
    num_threads: Annotated[
        int | None, typer.Option(help="CPU threads. Unset: the physical cores.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch a network.")] = False,
) -> None:
    """Measure how near a model's next-token laws in other number formats are to those in float32.

    The model answers built-in prompts in float32; each format then gives its laws for the same tokens.
    """
    from resispec.models.base import ModelError

    try:
        from resispec.engine.fidelity.command import run
        from resispec.engine.fidelity.measure import FidelitySettings

        names = tuple(name.strip() for name in formats.split(","))
        settings = FidelitySettings(target, names, prompts, tokens, num_threads, offline)
        run(settings, as_json=json)
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
    except ModelError as exc:
        raise failed(exc, ExitCode.MODEL) from None
