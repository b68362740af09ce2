"""What a run gave, for a terminal, for a document and for a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from .machine import Machine
from .summary import ALL_PROMPTS, BASELINES, Ratio, Row, Spread
from .tables import markdown_table, to_json

_NAMES = ("contender", "prompts", "T", "load")
_NUM_WORDS = 2  # leading columns that hold words
_FILE_WIDTH = 200  # of the tables where there is no terminal to fit


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    target: str
    draft: str | None
    dtype: str
    tokens: int  # generated for every prompt
    repeats: int  # asked for
    rows: tuple[Row, ...]
    ratios: tuple[Ratio, ...]  # over all prompts and temperatures
    interrupted: bool
    baselines: tuple[str, ...] = BASELINES
    turns: str = "everybody in turn"  # who ran when
    ready_seconds: Mapping[str, float] = field(default_factory=dict)  # of servers: from start to service

    @property
    def complete(self) -> bool:
        return not self.interrupted and all(row.error is None for row in self.rows)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What failed, where and how it was measured: a sentence or two each."""
        failures = {(row.case.contender, row.error): row for row in self.rows if row.error is not None}
        lines = [
            *(f"{contender} failed: {reason}" for contender, reason in failures),
            f"Machine: {self.machine}.",
            f"Target {self.target}, draft {self.draft or 'none'}, {self.dtype}, {self.tokens} tokens each.",
            f"Medians of {self.repeats} repeats, {self.turns}; ± is half of lowest to highest.",
        ]
        if self.ready_seconds:
            waits = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.ready_seconds.items())
            lines.append(f"From start to ready: {waits}.")
        if self.machine.warning:
            lines.append(self.machine.warning)
        if self.interrupted:
            lines.append("Interrupted: fewer repeats were measured, and ratios are of those both were in.")
        return tuple(lines)


def print_report(report: Report, console: Console) -> None:
    """The table, the phases, the ratios and the conditions."""
    if not console.is_terminal:
        console.width = max(console.width, _FILE_WIDTH)
    columns = used_columns(report)
    table = _table((*_NAMES, *(column.heading for column in columns)), _NUM_WORDS)
    for row in report.rows:
        table.add_row(*_cells(row, columns, _short), end_section=_ends_section(row, report.rows))
    console.print(table)
    names, shares = _phase_cells(report.rows)
    if shares:
        phases = _table(("share of the time", *_NAMES[1:], *names), _NUM_WORDS)
        for cells in shares:
            phases.add_row(*cells)
        console.print(phases)
    for ratio in report.ratios:
        console.print(f"{ratio.name}: {_spread(ratio.value, 2)}", highlight=False)
    for line in report.conditions:
        console.print(line, style="dim", highlight=False)


def to_markdown(report: Report) -> str:
    columns = used_columns(report)
    headings = (*_NAMES, *(column.heading for column in columns))
    lines = [*markdown_table(headings, [_cells(row, columns, _spread) for row in report.rows]), ""]
    names, shares = _phase_cells(report.rows)
    if shares:
        lines += [*markdown_table(("share of the time", *_NAMES[1:], *names), shares), ""]
    lines += [f"- {ratio.name}: {_spread(ratio.value, 2)}" for ratio in report.ratios]
    lines += [f"- {line}" for line in report.conditions]
    return "\n".join(lines) + "\n"


def write_files(report: Report, json: Path | None, markdown: Path | None) -> None:
    """Raises OSError."""
    if json is not None:
        json.write_bytes(to_json(report))
    if markdown is not None:
        markdown.write_text(to_markdown(report), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    value: Callable[[Row], Spread | None]
    digits: int
    with_spread: bool = True


def used_columns(report: Report) -> list[Column]:
    """The figures that at least one row has."""
    columns = [
        Column("tokens/s", lambda row: row.tokens_per_second, 1),
        Column("ms/step", lambda row: row.step_ms, 1),
        Column("tokens/step", lambda row: row.tokens_per_step, 2, with_spread=False),
        Column("nodes/tree", lambda row: row.nodes_per_tree, 1, with_spread=False),
        Column("masks, %", lambda row: row.grammar_percent, 1, with_spread=False),
        Column("first token, ms", lambda row: row.first_token_ms, 0),
        Column("gap, ms", lambda row: row.gap_ms, 1, with_spread=False),
        Column("gap p99", lambda row: row.gap_p99_ms, 1, with_spread=False),
        Column("longest gap", lambda row: row.gap_max_ms, 0, with_spread=False),
        Column("MiB", lambda row: row.memory_mib, 0, with_spread=False),
    ]
    columns += [Column(f"x {name}", _over(name), 2) for name in report.baselines]
    columns += [
        Column("decoding x plain", lambda row: row.decoding, 2),
        Column("reported", lambda row: row.reported, 2, with_spread=False),
        Column("replayed", lambda row: row.replayed, 2, with_spread=False),
        Column("within 10%", lambda row: row.well_reported, 2, with_spread=False),
        Column("simulated/measured", lambda row: row.simulated, 2),
    ]
    return [column for column in columns if any(column.value(row) is not None for row in report.rows)]


def _over(name: str) -> Callable[[Row], Spread | None]:
    return lambda row: row.over.get(name)


def _cells(row: Row, columns: Sequence[Column], figure: Callable[[Spread | None, int], str]) -> list[str]:
    names = _names(row)
    if row.error is not None:
        return [*names, "failed", *[""] * (len(columns) - 1)]
    return names + [
        (figure if column.with_spread else _median)(column.value(row), column.digits) for column in columns
    ]


def _names(row: Row) -> list[str]:
    return [row.case.contender, row.case.prompts, f"{row.case.temperature:g}", row.case.load]


def _phase_cells(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Names of the phases and shares: of the rows over all prompts, or where there are none of every row."""
    pooled = [row for row in rows if row.case.prompts == ALL_PROMPTS]
    shown = [row for row in pooled or rows if row.phases]
    names = tuple(dict.fromkeys(name for row in shown for name in row.phases))
    return names, [[*_names(row), *(f"{row.phases.get(name, 0.0):.1%}" for name in names)] for row in shown]


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def _short(spread: Spread | None, digits: int) -> str:
    """With half the range as a share of the median."""
    if spread is None:
        return ""
    share = (spread.high - spread.low) / 2 / spread.median
    return f"{spread.median:.{digits}f} ±{share:.0%}"


def _median(spread: Spread | None, digits: int) -> str:
    return "" if spread is None else f"{spread.median:.{digits}f}"


def _table(headings: Sequence[str], num_names: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < num_names else "right")
    return table


def _ends_section(row: Row, rows: Sequence[Row]) -> bool:
    """A line below the last contender of each workload."""
    place = rows.index(row) + 1
    work = (row.case.prompts, row.case.temperature, row.case.load)
    if place == len(rows):
        return False
    following = rows[place].case
    return work != (following.prompts, following.temperature, following.load)
