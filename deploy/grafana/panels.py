"""The kinds of panels on the dashboards, all alike in looks."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Protocol, Self, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Row, ThresholdsConfig
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as styles
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from queries import rate

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = Builder[models.Panel]


class _Common(Protocol):
    """What the library's builders of panels have in common."""

    def title(self, title: str) -> Self: ...
    def description(self, description: str) -> Self: ...
    def datasource(self, datasource: models.DataSourceRef) -> Self: ...
    def unit(self, unit: str) -> Self: ...
    def span(self, w: int) -> Self: ...
    def height(self, h: int) -> Self: ...


Kind = TypeVar("Kind", bound=_Common)


def row(title: str) -> Row:
    """A heading; the panels after it belong to it."""
    return Row(title)


def tile(
    title: str, text: str, expr: str, unit: str = "short", steps: Mapping[float, str] | None = None
) -> Panel:
    """One number and how it went. ``steps``: colours from a value on."""
    colours = [
        models.Threshold(None if value == -inf else value, colour) for value, colour in (steps or {}).items()
    ]
    panel = _frame(stat.Panel(), title, text, unit, span=4, height=4)
    return (
        panel.with_target(_query(expr, "", "A"))
        .thresholds(ThresholdsConfig().steps(colours or [models.Threshold(None, "blue")]))
        .graph_mode(styles.BigValueGraphMode.AREA)
        .color_mode(styles.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def lines(
    title: str,
    text: str,
    exprs: Mapping[str, str],
    unit: str = "short",
    *,
    stacked: bool = False,
    span: int = 8,
) -> Panel:
    """Series over time. ``exprs``: queries by legend, in which ``{{label}}`` stands for a label's value."""
    panel = _frame(timeseries.Panel(), title, text, unit, span, height=8)
    for index, (legend, expr) in enumerate(exprs.items()):
        panel = panel.with_target(_query(expr, legend, chr(ord("A") + index)))
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(styles.StackingMode.NORMAL)).fill_opacity(40)
    legend_options = common.VizLegendOptions().display_mode(styles.LegendDisplayMode.LIST)
    return (
        panel.min(0)
        .show_points(styles.VisibilityMode.NEVER)
        .legend(legend_options.placement(styles.LegendPlacement.BOTTOM).show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(styles.TooltipDisplayMode.MULTI))
    )


def heat(title: str, text: str, name: str, unit: str = "short") -> Panel:
    """A histogram's buckets over time."""
    query = _query(rate(f"{name}_bucket", "le"), "{{le}}", "A").format(PromQueryFormat.HEATMAP)
    colours = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").exponent(0.5)
    panel = _frame(heatmap.Panel(), title, text, "short", span=8, height=8)
    return panel.with_target(query).calculate(False).color(colours).y_axis(heatmap.YAxisConfig().unit(unit))


def bars(title: str, text: str, expr: str, legend: str, unit: str = "percentunit") -> Panel:
    """The newest value of each series, side by side."""
    panel = _frame(bargauge.Panel(), title, text, unit, span=8, height=8)
    return (
        panel.with_target(_query(expr, legend, "A"))
        .min(0)
        .max(1)
        .orientation(styles.VizOrientation.HORIZONTAL)
        .display_mode(styles.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def facts(title: str, text: str, expr: str, hidden: tuple[str, ...]) -> Panel:
    """The labels of the newest series as a table, less the ``hidden`` ones."""
    query = prometheus.Dataquery().expr(expr).instant().format(PromQueryFormat.TABLE).ref_id("A")
    leave_out = {"excludeByName": dict.fromkeys(hidden, True)}
    panel = _frame(table.Panel(), title, text, "short", span=24, height=5)
    return panel.with_target(query.datasource(SOURCE)).with_transformation(
        models.DataTransformerConfig(id_val="organize", options=leave_out)
    )


def _frame(panel: Kind, title: str, text: str, unit: str, span: int, height: int) -> Kind:
    return panel.title(title).description(text).datasource(SOURCE).unit(unit).span(span).height(height)


def _query(expr: str, legend: str, ref: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).legend_format(legend).range().ref_id(ref).datasource(SOURCE)
