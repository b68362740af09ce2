"""The committed dashboards are what their definition gives, and hold together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
COMMITTED = sorted((GRAFANA / "dashboards").glob("*.json"))
BOARDS = [pytest.param(json.loads(path.read_text()), id=path.stem) for path in COMMITTED]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dashboards")
    command = [sys.executable, str(GRAFANA / "build.py"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_committed_ones_are_up_to_date(built: Path) -> None:
    assert [path.name for path in COMMITTED] == sorted(path.name for path in built.iterdir())
    for path in COMMITTED:
        assert path.read_text() == (built / path.name).read_text(), f"run {GRAFANA / 'build.py'}"


@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_says_what_it_shows(board: dict[str, Any]) -> None:
    assert len(panels(board)) > 10
    titles = [panel["title"] for panel in board["panels"]]
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            assert '$instance"' in target["expr"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)), panel["title"]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    rows = {panel["title"] for panel in board["panels"] if panel["type"] == "row"}
    assert rows < set(titles)


@pytest.mark.parametrize("board", BOARDS)
def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_variables_and_identities() -> None:
    loaded = [json.loads(path.read_text()) for path in COMMITTED]
    assert {board["uid"] for board in loaded} == {"resispec-overview", "resispec-speculation"}
    for board in loaded:
        names = [variable["name"] for variable in board["templating"]["list"]]
        assert names == ["datasource", "model", "instance"]


def test_the_provisioned_source_scrapes_as_often_as_it_says() -> None:
    """Grafana derives the window of rates from it."""
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())
    config = yaml.safe_load((GRAFANA.parent / "prometheus" / "prometheus.yml").read_text())
    [datasource] = source["datasources"]
    assert datasource["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
