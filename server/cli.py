"""The ``resispec`` command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer

from resispec.engine.config import ConfigError

from .audit_command import audit
from .bench_command import bench
from .exit_codes import ExitCode, failed
from .fidelity_command import fidelity
from .loading import load_settings
from .options import settings_command
from .simulate_command import simulate
from .top.command import top

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
        raise failed(exc, ExitCode.CONFIGURATION) from None
    from .serve import serve

    raise typer.Exit(serve(settings))


app.command("serve")(settings_command(_serve))
app.command("audit")(audit)
app.command("fidelity")(fidelity)
app.command("bench")(bench)
app.command("simulate")(simulate)
app.command("top")(top)


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
        raise failed(exc, ExitCode.MODEL) from None
    print(f"The default model is ready in {folder}")  # noqa: T201


@app.command()
def distill(
    target: Annotated[str, typer.Option(help="'default', a hub id, a local folder or a GGUF file.")],
    out: Annotated[Path, typer.Option(help="Folder for the draft; work files lie beside it.")],
    kind: Annotated[
        str, typer.Option(help="head: one layer on the target's states; model: some of the target's layers.")
    ] = "head",
    layers: Annotated[
        int | None, typer.Option(help="Layers of a model (default: 4).", show_default=False)
    ] = None,
    target_layer: Annotated[
        list[int] | None,
        typer.Option(help="A layer of the target, from 0, whose input a head reads as well; repeat."),
    ] = None,
    intermediate_size: Annotated[
        int | None,
        typer.Option(
            help="Width of a head's feed-forward part (default: that of --start-from, else the target's).",
            show_default=False,
        ),
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option(help="Folder of an earlier head of this target, to train it further.")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="JSONL with prompt and output ids, or plain text; repeat.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts for the text that the target writes, one a line.")
    ] = None,
    generate_tokens: Annotated[
        int | None, typer.Option(help="Tokens the target writes. Unset: none beside --data, else 500000.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="At its highest (default: 0.0015); less for a draft that is trained further.",
            show_default=False,
        ),
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(help="Tokens that a head may propose (default: 8192).", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32.")] = "auto",
    save_minutes: Annotated[float, typer.Option(help="Minutes between two checkpoints.")] = 5.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier run stopped.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch a network.")] = False,
) -> None:
    """Train a draft for a target, from the target's own text and hidden states."""
    from rich.console import Console

    from resispec.models.base import ModelError
    from resispec.models.distill.run import DistillSettings
    from resispec.models.distill.run import distill as run

    try:
        settings = DistillSettings(
            target=target,
            out=out,
            kind=kind,
            layers=layers,
            target_layers=tuple(target_layer or ()),
            intermediate_size=intermediate_size,
            start_from=start_from,
            data=tuple(data or ()),
            prompts=prompts,
            generate_tokens=generate_tokens,
            steps=steps,
            minutes=minutes,
            learning_rate=learning_rate,
            vocab=vocab,
            seed=seed,
            device=device,
            dtype=dtype,
            save_minutes=save_minutes,
            resume=resume,
            offline=offline,
        )
        folder = run(settings, Console())
    except ModelError as exc:
        raise failed(exc, ExitCode.MODEL) from None
    command = shlex.join(["resispec", "serve", "--target", target, "--draft", str(folder)])
    print(f"The draft is ready: {command}")  # noqa: T201


@app.command()
def version() -> None:
    """Print the version."""
    print(installed_version("resispec"))  # noqa: T201


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
