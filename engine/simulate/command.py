"""`resispec simulate`: compute, show."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from resispec.models.prepare.cache import cache_root

from .run import SimulationReport, run_simulation
from .settings import SimulateSettings


def run(settings: SimulateSettings, *, as_json: bool) -> None:
    """Print a table, or one JSON object. Raises ConfigError."""
    report = run_simulation(settings, cache_root() / "costs")
    if as_json:
        print(json.dumps(asdict(report)))  # noqa: T201
    else:
        print_simulation(report, Console())


def print_simulation(report: SimulationReport, console: Console) -> None:
    table = Table(title="Tokens a second over those of plain decoding")
    trees = list(report.rows[0].fixed)
    headings = ("requests", "plain, tokens/s", "auto", "nodes/tree")
    for heading in (*headings, *(f"fixed {tree}" for tree in trees)):
        table.add_column(heading, justify="right")
    for row in report.rows:
        fixed = (f"{row.fixed[tree]:.2f}" for tree in trees)
        cells = (f"{row.plain:.4g}", f"{row.auto:.2f}", f"{row.auto_nodes:.1f}", *fixed)
        table.add_row(str(row.batch), *cells)
    console.print(table)
    kept = ", ".join(f"{rate:.2f}" for rate in report.kept)
    console.print(f"Costs: {report.costs}. A single child is kept with chances {kept} by depth.", style="dim")
