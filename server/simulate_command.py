"""``resispec simulate``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resispec.engine.config import ConfigError

from .exit_codes import ExitCode, failed


def simulate(
    costs: Annotated[
        str | None,
        typer.Option(
            help="cpu or cuda, those of a usual pair, or a cost table's file. Unset: the newest that was "
            "measured on this machine.",
            show_default=False,
        ),
    ] = None,
    kept: Annotated[
        str | None,
        typer.Option(
            help="Chance of a single drafted child by depth, such as 0.65,0.6,0.55, which is the default.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Instead: a file that `resispec bench --trace` recorded.", show_default=False),
    ] = None,
    batch: Annotated[str, typer.Option(help="Requests in flight.")] = "1,4,16,64,256",
    trees: Annotated[str, typer.Option(help="Fixed trees to compare, nodes x depth.")] = "4x2,8x3,16x4",
    max_nodes: Annotated[int, typer.Option(help="Most candidates in a tree of auto.")] = 16,
    max_depth: Annotated[int, typer.Option(help="Most drafted levels of it.")] = 4,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    tokens: Annotated[int, typer.Option(help="Decoded for each request.")] = 200,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate what speculation gains over batch sizes: the controller, a cost table and acceptance.

    Steps that decode are simulated, with drafted trees; no model is loaded.
    """
    try:
        from resispec.engine.bench.settings import parse_list, parse_tree
        from resispec.engine.simulate.command import run
        from resispec.engine.simulate.settings import SimulateSettings

        settings = SimulateSettings(
            costs=costs,
            kept=parse_list(kept or "", float, "kept", unique=False),
            trace=trace,
            batch=parse_list(batch, int, "batch"),
            trees=tuple(parse_tree(tree) for tree in parse_list(trees, str, "trees")),
            max_nodes=max_nodes,
            max_depth=max_depth,
            temperature=temperature,
            tokens=tokens,
            prompt=prompt,
        )
        run(settings, as_json=json)
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
