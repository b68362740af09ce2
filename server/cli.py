"""The ``resispec`` command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer

from resispec.engine.config import ConfigError

from .exit_codes import ExitCode
from .options import settings_command
from .settings import load_settings

app = typer.Typer(
    help="LLM inference server with exact tree speculation.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _serve(flags: Mapping[str, Any]) -> None:
    """Serve a model over HTTP, in OpenAI's dialect.

    Each option can also be set by the environment variable RESISPEC_NAME (RESISPEC_MAX_NUM_SEQS) or by a
    line in the file given with --config (max_num_seqs = 16). A flag wins over the environment, which
    wins over the file.

    Exit codes: 2 for a bad configuration, 3 for a model that cannot be loaded, 4 for an address that
    cannot be listened on, 1 for anything else.
    """
    try:
        settings = load_settings(flags)
    except ConfigError as exc:
        print(f"resispec: {exc}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(ExitCode.CONFIGURATION) from None
    from .serve import serve

    raise typer.Exit(serve(settings))


app.command("serve")(settings_command(_serve))


@app.command()
def prepare(
    offline: Annotated[bool, typer.Option("--offline", help="Never touch a network.")] = False,
) -> None:
    """Fetch and convert the default model, once; `serve` does it too when it has to."""
    from resispec.models.base import ModelError
    from resispec.models.prepare import prepare_default

    try:
        folder = prepare_default(offline=offline)
    except ModelError as exc:
        print(f"resispec: {exc}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(ExitCode.MODEL) from None
    print(f"The default model is ready in {folder}")  # noqa: T201


@app.command()
def version() -> None:
    """Print the version."""
    print(installed_version("resispec"))  # noqa: T201


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
