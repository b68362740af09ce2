"""`resispec simulate`: costs from anywhere, acceptance given or recorded, and what is said of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from resispec.engine.budget.costs import MeasuredCosts
from resispec.engine.budget.record import AcceptanceRecord
from resispec.engine.config import ConfigError
from resispec.engine.cost.table import CostTable
from resispec.engine.simulate.run import load_costs, run_simulation
from resispec.engine.simulate.settings import SimulateSettings
from resispec.engine.tree import plan_shape
from resispec.server.cli import app


def test_the_curve_of_a_gpu_is_never_below_plain_and_falls_to_it(tmp_path: Path) -> None:
    settings = SimulateSettings(costs="cuda", kept=(0.65, 0.6, 0.55), tokens=100)
    report = run_simulation(settings, tmp_path)
    assert [row.batch for row in report.rows] == [1, 4, 16, 64, 256]
    speedups = [row.auto for row in report.rows]
    assert min(speedups) > 0.97
    assert speedups[0] > 1.5
    assert all(row.auto > 0.95 * max(row.fixed.values()) for row in report.rows)
    assert min(row.fixed["16x4"] for row in report.rows) < 0.6  # what a fixed tree costs under load
    goodput = [row.plain * row.auto for row in report.rows]
    assert goodput == sorted(goodput)


def test_a_draft_that_is_never_right_is_not_used_for_long(tmp_path: Path) -> None:
    for costs in ("cpu", "cuda"):
        report = run_simulation(SimulateSettings(costs=costs, kept=(0.0,), tokens=100), tmp_path)
        assert all(row.auto > 0.97 for row in report.rows)


def test_the_newest_table_is_taken_unless_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cost table was measured here yet"):
        load_costs(None, tmp_path)
    table = CostTable.guess(draft=True)
    table.save(tmp_path / "old.json", "one")
    table.observe_target(1, 256, 0.5)
    table.save(tmp_path / "new.json", "another")
    older = (tmp_path / "new.json").stat().st_mtime - 10
    os.utime(tmp_path / "old.json", (older, older))
    name, costs = load_costs(None, tmp_path)
    assert name == str(tmp_path / "new.json")
    assert costs.target_seconds(1, 256) == pytest.approx(0.5)
    name, costs = load_costs(str(tmp_path / "old.json"), tmp_path)
    assert costs.target_seconds(1, 256) == pytest.approx(0.02)
    assert isinstance(costs, MeasuredCosts)


@pytest.mark.parametrize("content", [None, b"{}", b"\x00"])
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="costs.json") as caught:
        load_costs(str(path), tmp_path)
    assert caught.value.setting == "costs"


def test_a_trace_says_what_is_kept(tmp_path: Path) -> None:
    record = AcceptanceRecord()
    shape = plan_shape(2, 2, greedy=True)
    for kept in (0, 2, 2, 1, 2, 0, 2, 2):
        record.add(shape, kept, greedy=True)
    record.save(tmp_path / "trace")
    settings = SimulateSettings(costs="cpu", trace=tmp_path / "trace", temperature=0.0, batch=(1,))
    report = run_simulation(settings, tmp_path)
    assert report.kept == pytest.approx(record.rates(4, greedy=True))
    assert report.rows[0].auto > 1.2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"kept": (0.5,), "trace": Path("x")}, "trace"),
        ({"kept": (1.0,)}, "kept"),
        ({"kept": (-0.1,)}, "kept"),
        ({"batch": ()}, "batch"),
        ({"batch": (0,)}, "batch"),
        ({"temperature": -1.0}, "temperature"),
        ({"tokens": 0}, "tokens"),
        ({"max_depth": 0}, "max_depth"),
    ],
)
def test_bad_settings(changes: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SimulateSettings(**changes)  # type: ignore[arg-type]
    assert caught.value.setting == name


def test_the_command() -> None:
    shown = CliRunner().invoke(app, ["simulate", "--costs", "cuda", "--batch", "1,16", "--trees", "4x2"])
    assert shown.exit_code == 0
    assert "fixed 4x2" in shown.output
    told = CliRunner().invoke(
        app, ["simulate", "--costs", "cpu", "--batch", "2", "--kept", "0.5,0.5", "--json"]
    )
    report = json.loads(told.stdout)
    assert report["kept"] == [0.5, 0.5]
    assert report["rows"][0]["batch"] == 2
    for arguments in (["--trees", "4"], ["--trees", "0x2"], ["--kept", "often"], ["--costs", "/nowhere"]):
        assert CliRunner().invoke(app, ["simulate", *arguments]).exit_code == 2
