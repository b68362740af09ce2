"""A report's throughput as a picture: one panel a kind of work, one line a contender, over the load."""

from __future__ import annotations

from pathlib import Path

from .report import Report
from .summary import ALL_PROMPTS, Row

_WIDTH, _HEIGHT = 4.5, 3.4  # inches of one panel
_COLUMNS = 3


def write_plot(report: Report, path: Path) -> None:
    """In the format that the file's name says; draws what was measured. Raises OSError."""
    from matplotlib.figure import Figure

    panels = _panels(report)
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, ((prompts, temperature), members) in zip(grid, panels.items(), strict=False):
        loads = list(dict.fromkeys(row.case.load for row in members))
        for name in dict.fromkeys(row.case.contender for row in members):
            points = [row for row in members if row.case.contender == name]
            figures = [row.tokens_per_second for row in points]
            known = [(row, value) for row, value in zip(points, figures, strict=True) if value is not None]
            axes.errorbar(
                [loads.index(row.case.load) for row, _ in known],
                [value.median for _, value in known],
                yerr=[
                    [value.median - value.low for _, value in known],
                    [value.high - value.median for _, value in known],
                ],
                marker="o",
                capsize=3,
                label=name,
            )
        axes.set_xticks(range(len(loads)), loads)
        axes.set_ylim(bottom=0)
        axes.set(title=f"{prompts}, T = {temperature:g}", xlabel="requests in flight, or a second")
        axes.set_ylabel("tokens/s")
        axes.grid(alpha=0.3)
    if panels:
        grid[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _panels(report: Report) -> dict[tuple[str, float], list[Row]]:
    """Rows with figures, by prompts and temperature; of pooled ones and their parts, the pooled."""
    pooled = [row for row in report.rows if row.case.prompts == ALL_PROMPTS]
    panels: dict[tuple[str, float], list[Row]] = {}
    for row in pooled or report.rows:
        if row.tokens_per_second is not None:
            panels.setdefault((row.case.prompts, row.case.temperature), []).append(row)
    return panels
