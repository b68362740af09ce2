"""A pair's audit for people: a table, and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config import ConfigError
from ..verifiers.table import VERIFIERS
from .settings import PairSettings
from .tally import Row


def pair_json(settings: PairSettings, rows: Sequence[Row]) -> dict[str, Any]:
    """``{"pair": {settings.., "rows": [{"verifier", "children", "acceptance", ..}]}}``."""
    return {"pair": {**asdict(settings), "rows": [asdict(row) for row in rows]}}


def print_pair(settings: PairSettings, rows: Sequence[Row], console: Console) -> None:
    table = Table(
        title=f"Acceptance at one node: {settings.target} with draft {settings.draft}, "
        f"T = {settings.temperature:g}, about {settings.positions} positions"
    )
    table.add_column("verifier", no_wrap=True)
    for column in ("children", "head + tail", "acceptance", "ceiling", "of it"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, found in by_verifier(rows).items():
        for row in found:
            table.add_row(
                name if row.exact else f"{name} (not exact)",
                str(row.children),
                f"{row.head:.2g} + {row.tail:.2g}",
                f"{row.acceptance:.4f} ± {row.standard_error:.4f}",
                "-" if row.ceiling is None else f"{row.ceiling:.4f}",
                "-" if row.of_ceiling is None else f"{row.of_ceiling:.4f}",
            )
        table.add_section()
    console.print(table)


def write_pair(settings: PairSettings, rows: Sequence[Row], folder: Path) -> None:
    """``pair.json`` and ``pair.png`` in ``folder``. Raises ConfigError, also where matplotlib is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pair.json").write_text(json.dumps(pair_json(settings, rows), indent=1) + "\n")
        plot(settings, rows, folder / "pair.png")
    except OSError as error:
        raise ConfigError(f"--output: cannot write to {folder}: {error.strerror}") from error


def require_plotting() -> None:
    """Raises ConfigError where plots cannot be drawn: before anything is measured."""
    if find_spec("matplotlib") is None:
        raise ConfigError("--output draws a plot with matplotlib: pip install 'resispec[plot]'")


def plot(settings: PairSettings, rows: Sequence[Row], path: Path) -> None:
    """Acceptance by children, a line a verifier, and the ceiling of the default rule's candidates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines = by_verifier(rows)
    for name, found in lines.items():
        axes.errorbar(
            [row.children for row in found],
            [row.acceptance for row in found],
            yerr=[row.standard_error for row in found],
            label=name if VERIFIERS[name].exact else f"{name} (not exact)",
            linestyle="-" if VERIFIERS[name].exact else ":",
            marker="o",
            markersize=3,
            capsize=2,
        )
    bounds = [(row.children, row.ceiling) for row in lines.get("resispec", []) if row.ceiling is not None]
    axes.plot(*zip(*bounds, strict=True), color="black", linewidth=0.8, label="ceiling, head and tail")
    axes.set_xlabel("children of a node")
    axes.set_ylabel("probability that one is kept")
    axes.set_title(f"{settings.target}, draft {settings.draft}, T = {settings.temperature:g}")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def by_verifier(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """In the table's order of verifiers, then of children."""
    ordered = sorted(rows, key=lambda row: row.children)
    groups = {name: [row for row in ordered if row.verifier == name] for name in VERIFIERS}
    return {name: group for name, group in groups.items() if group}
