"""The plot shows what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resispec.engine.bench.machine import Machine
from resispec.engine.bench.plot import write_plot
from resispec.engine.bench.report import Report
from resispec.engine.bench.settings import BenchSettings
from resispec.engine.bench.summary import Case, summarize
from resispec.engine.config import ConfigError


def report(rows: Any) -> Report:
    machine = Machine("a CPU", 2, 2, 0.0, "cpu", "2", "5")
    return Report(machine, "default", None, "bfloat16", 8, 1, tuple(rows), (), interrupted=False)


def test_every_contender_and_load_is_drawn(make, tmp_path: Path) -> None:
    cases = [
        Case(name, "chat", heat, batch)
        for heat in (0.0, 1.0)
        for name in ("plain", "speculative")
        for batch in (1, 8)
    ]
    cases.append(Case("plain", "chat", 0.0, 0, rate=2.5))
    rows = summarize(cases, {case: {0: make(), 1: make(seconds=2.0)} for case in cases}, {})
    path = tmp_path / "a.svg"
    write_plot(report(rows), path)
    drawn = path.read_text()
    for text in ("chat, T = 0", "chat, T = 1", "plain", "speculative", "2.5/s"):
        assert f"<!-- {text} -->" in drawn


def test_failures_leave_nothing_to_draw(tmp_path: Path) -> None:
    case = Case("plain", "chat", 0.0, 1)
    path = tmp_path / "a.png"
    write_plot(report(summarize([case], {}, {case: "ValueError: no"})), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused_before_anything_runs(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"name a \.png"):
        BenchSettings(plot=tmp_path / "a.doc")
    monkeypatch.setattr("resispec.engine.bench.settings.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="pip install"):
        BenchSettings(plot=tmp_path / "a.png")
