"""A pair's splits for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from .settings import PairSettings
from .splits import SplitRow


def splits_json(settings: PairSettings, rows: Sequence[SplitRow]) -> dict[str, Any]:
    """``{"splits": {settings.., "rows": [{"children", "head", "acceptance", ..}]}}``."""
    return {"splits": {**asdict(settings), "rows": [asdict(row) for row in rows]}}


def print_splits(settings: PairSettings, rows: Sequence[SplitRow], console: Console) -> None:
    table = Table(
        title=f"Acceptance of resispec at one node: {settings.target} with draft {settings.draft}, "
        f"T = {settings.temperature:g}, about {settings.positions} positions"
    )
    for column in ("children", "chosen", "drawn", "acceptance", "over the best fixed"):
        table.add_column(column, justify="right", no_wrap=True)
    for _, group in groupby(rows, lambda row: row.children):
        for row in group:
            drawn = row.children - row.mean_head
            policy = f"policy: {row.mean_head:.2f}" if row.head is None else str(row.head)
            table.add_row(
                str(row.children),
                policy,
                f"{drawn:.2f}" if row.head is None else f"{drawn:g}",
                f"{row.acceptance:.4f} ± {row.standard_error:.4f}",
                f"{row.over_best_fixed:+.4f} ± {row.its_error:.4f}",
            )
        table.add_section()
    console.print(table)
