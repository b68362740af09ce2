"""``resispec audit``: its options, and which of them go together."""

from __future__ import annotations

import asyncio
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from resispec.engine.config import ConfigError

from .exit_codes import ExitCode, failed

_PAIR_ONLY = ("draft", "positions", "children", "output", "splits")
_LIVE_ONLY = ("answers", "tokens", "verifier")


def audit(
    context: typer.Context,
    cases: Annotated[
        Path | None, typer.Option(help="JSON list of nodes: p, q, head, tail_draws.", show_default=False)
    ] = None,
    trees: Annotated[
        Path | None,
        typer.Option(help="JSON list of trees: depth, head_size, tail_draws, laws.", show_default=False),
    ] = None,
    pair: Annotated[bool, typer.Option("--pair", help="Measure acceptance on a pair's own laws.")] = False,
    live: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Test the answers of a running server.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The target, loaded here.", show_default="default")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The pair's draft.", show_default="default")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the pair's text, or of the answers.", show_default="1")
    ] = None,
    positions: Annotated[
        int | None, typer.Option(help="Of the text the pair's target writes.", show_default="512")
    ] = None,
    children: Annotated[
        str | None, typer.Option(help="Numbers of children at the pair's nodes.", show_default="1,2,3,4,8")
    ] = None,
    splits: Annotated[
        bool, typer.Option("--splits", help="Of a pair: every split of children into chosen and drawn.")
    ] = False,
    answers: Annotated[
        int | None, typer.Option(help="Asked for of a running server.", show_default="2000")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Of each answer.", show_default="4")] = None,
    verifier: Annotated[
        str | None, typer.Option(help="For the answers.", show_default="the server's")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Of the server.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random here.", show_default="0")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda:N.", show_default="auto")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the weights.", show_default="auto; with --live the server's")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the pair's figures and plot.", show_default=False)
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch a network for a model.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what every verifier's output law really is, and how much it accepts.

    With --cases and --trees by exact enumeration, at single nodes and over whole trees; with --pair on the
    laws of a pair along text that its target writes, against the most that any exact rule can accept, or,
    with --splits too, for every number of children that are chosen instead of drawn; with
    --live by asking a running server for many short answers and testing their joint law against the
    target's, computed here. Exits with 1 if a running server's answers do not follow it.
    """
    given: dict[str, Any] = {
        "target": target,
        "draft": draft,
        "temperature": temperature,
        "positions": positions,
        "children": children,
        "answers": answers,
        "tokens": tokens,
        "verifier": verifier,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "output": output,
        "splits": splits or None,
        "offline": offline or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    from resispec.models.base import ModelError

    try:
        _check(given, cases, trees, pair=pair, live=live)
        source = context.get_parameter_source("api_key")
        if live is None and source is not None and source.name == "COMMANDLINE":
            raise ConfigError("--api-key goes with --live")  # in the environment it may be for others
        if live is not None:
            raise typer.Exit(_live({"url": live, **given}, api_key, as_json=json))
        _enumerate(given, cases, trees, pair=pair, as_json=json)
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
    except ModelError as exc:
        raise failed(exc, ExitCode.MODEL) from None


def _check(
    given: dict[str, Any], cases: Path | None, trees: Path | None, *, pair: bool, live: str | None
) -> None:
    """Raises ConfigError for options that do not go together."""
    if live is not None and (pair or cases is not None or trees is not None):
        raise ConfigError("--live goes alone; give --cases, --trees and --pair to a run of their own")
    for name in given:
        if name in _LIVE_ONLY and live is None:
            raise ConfigError(f"--{name} goes with --live")
        if name in _PAIR_ONLY and not pair:
            raise ConfigError(f"--{name} goes with --pair")
        if live is None and not pair:
            raise ConfigError(f"--{name} goes with --pair or --live")
    if live is None and not pair and cases is None and trees is None:
        raise ConfigError("nothing to audit; give --cases FILE, --trees FILE, --pair or --live URL")


def _enumerate(
    given: dict[str, Any], cases: Path | None, trees: Path | None, *, pair: bool, as_json: bool
) -> None:
    from resispec.engine.audit.command import run
    from resispec.engine.audit.settings import PairSettings, parse_children

    output, splits = given.pop("output", None), given.pop("splits", False)
    if output is not None and splits:
        raise ConfigError("--output goes with the verifiers' figures; leave out --splits")
    if "children" in given:
        given["children"] = parse_children(given["children"])
    run(cases, trees, PairSettings(**given) if pair else None, output, splits=splits, as_json=as_json)


def _live(given: dict[str, Any], api_key: str | None, *, as_json: bool) -> ExitCode:
    from rich.console import Console
    from rich.progress import Progress

    from resispec.engine.audit.settings import LiveSettings

    settings = LiveSettings(**given)
    from .live_client import as_served, collect

    settings = asyncio.run(as_served(settings, api_key))
    from resispec.engine.audit.live_report import LiveAudit, live_json, print_live

    console = Console(stderr=True)
    console.print(f"loading {settings.target}", style="dim")
    audited = LiveAudit(settings)
    with Progress(console=console, transient=True) as progress:
        asking = progress.add_task(f"asking {settings.url}", total=settings.answers)
        collected = asyncio.run(collect(settings, audited.prompts, api_key, lambda: progress.advance(asking)))
    console.print("computing the target's law along the answers", style="dim")
    report = audited.report(collected.answers, collected.verifier, collected.exact)
    if as_json:
        print(jsonlib.dumps(live_json(settings, report)))  # noqa: T201
    else:
        print_live(settings, report, Console())
    return ExitCode.OK if report.passed else ExitCode.ERROR
