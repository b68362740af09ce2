"""Write the dashboards: ``python deploy/grafana/build.py [FOLDER]``; by default dashboards/ beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from overview import overview
from panels import SOURCE, Panel
from speculation import speculation

TAG = "resispec"
LIVE = "10s"


def dashboard(title: str, description: str, parts: Sequence[Panel | builders.Row]) -> builders.Dashboard:
    """A dashboard with the variables and links that all of them have."""
    board = (
        builders.Dashboard(f"ResiSpec / {title}")
        .uid(f"resispec-{title.lower()}")
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh(LIVE)
        .link(_links())
    )
    for variable in _variables():
        board = board.with_variable(variable)
    for part in parts:
        board = board.with_row(part) if isinstance(part, builders.Row) else board.with_panel(part)
    return board


def dashboards() -> dict[str, builders.Dashboard]:
    """All of them, by file name."""
    return {
        "overview.json": dashboard("Overview", "Traffic, latency, queue, memory and errors.", overview()),
        "speculation.json": dashboard("Speculation", "What is drafted, kept and wasted.", speculation()),
    }


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, board in dashboards().items():
        model = board.build()
        for number, panel in enumerate(model.panels or [], start=1):
            panel.id_val = number  # what links to a panel name
        text = json.dumps(model, cls=JSONEncoder, indent=2, sort_keys=True)
        (folder / name).write_text(f"{text}\n")


def _variables() -> list[builders.DatasourceVariable | builders.QueryVariable]:
    source = builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return [
        source,
        _choice("model", "Model", "label_values(resispec_build_info, model)"),
        _choice("instance", "Instance", 'label_values(resispec_build_info{model=~"$model"}, instance)'),
    ]


def _choice(name: str, label: str, query: str) -> builders.QueryVariable:
    """Any number of a label's values; all of them at first."""
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _links() -> builders.DashboardLink:
    link = builders.DashboardLink("ResiSpec").type(models.DashboardLinkType.DASHBOARDS)
    return link.tags([TAG]).keep_time(True).include_vars(True)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards")
