"""`resispec fidelity`: measure, show."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from .measure import FidelitySettings, measure_fidelity


def run(settings: FidelitySettings, *, as_json: bool) -> None:
    """Print a table, or one JSON object. Raises what `measure_fidelity` raises."""
    rows = measure_fidelity(settings, Console(stderr=True))
    if as_json:
        print(json.dumps({"target": settings.target, "rows": [asdict(row) for row in rows]}))  # noqa: T201
        return
    positions = rows[0].positions
    table = Table(title=f"{settings.target} against its own float32 laws, {positions} positions")
    for heading in ("format", "mean KL", "99 % of KL below", "mean distance", "same top token"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for row in rows:
        table.add_row(
            row.format,
            f"{row.mean_kl:.4f}",
            f"{row.worst_kl:.4f}",
            f"{row.mean_distance:.4f}",
            f"{row.top1_agreement:.1%}",
        )
    Console().print(table)
