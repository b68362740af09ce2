"""A report as a table in a terminal, and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

Row = Sequence[str]


def print_table(headings: Row, rows: Sequence[Row], conditions: Sequence[str], console: Console) -> None:
    """The first column stands at the left, figures at the right, what they were measured under below."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in conditions:
        console.print(line, style="dim", highlight=False)


def markdown_table(headings: Row, rows: Sequence[Row]) -> list[str]:
    """Its lines."""
    lines = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def write_markdown(headings: Row, rows: Sequence[Row], conditions: Sequence[str], path: Path) -> None:
    """Raises OSError."""
    lines = [*markdown_table(headings, rows), "", *(f"- {line}" for line in conditions)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def to_json(report: object) -> bytes:
    """``msgspec.json.decode(text, type=type(report))`` gives the report back."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
