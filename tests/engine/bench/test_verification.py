"""The bench of verification counts full steps only, and every verifier asked for."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from resispec.engine.bench import verification
from resispec.engine.bench.contenders import BenchError
from resispec.engine.bench.settings import VerificationSettings
from resispec.engine.bench.verification import (
    VerificationReport,
    bench_verification,
    print_verification,
    write_verification,
)
from resispec.engine.config import ConfigError
from resispec.server.cli import app

QUIET = Console(quiet=True)


def settings(folder: Any, **changes: Any) -> VerificationSettings:
    values: dict[str, Any] = {
        "target": str(folder),
        "draft": str(folder),
        "verifiers": ("resispec", "target"),
        "temperature": (1.0,),
        "batch": 2,
        "nodes": 4,
        "depth": 2,
        "steps": 3,
        "repeats": 2,
        "device": "cpu",
        "dtype": "float32",
        "num_threads": 1,
        "offline": True,
    }
    return VerificationSettings(**(values | changes))


def test_every_case_is_measured_on_whole_trees(folder, monkeypatch, tmp_path) -> None:
    counted: list[int] = []
    middle = verification._median

    def record(steps: Any) -> Any:
        counted.append(len(steps))
        return middle(steps)

    monkeypatch.setattr(verification, "_median", record)
    report = bench_verification(settings(folder), QUIET)
    assert [(row.verifier, row.temperature, row.batch, row.nodes) for row in report.rows] == [
        ("resispec", 1.0, 2, 4),
        ("target", 1.0, 2, 4),
    ]
    assert counted == [3] * 4
    for row in report.rows:
        assert row.share.low <= row.share.median <= row.share.high
        assert row.draft_ms.low > 0
    json, markdown = tmp_path / "a.json", tmp_path / "a.md"
    write_verification(report, json, markdown)
    assert msgspec.json.decode(json.read_bytes(), type=VerificationReport) == report
    out = io.StringIO()
    print_verification(report, Console(file=out, width=200))
    for text in (out.getvalue(), markdown.read_text()):
        assert f"{report.rows[0].share.median:.1%} (" in text


def test_shares_are_of_the_forward() -> None:
    steps = [verification._Step(0.001, 0.1, 0.004, 16), verification._Step(0.001, 0.2, 0.016, 16)]
    made = verification._row(("resispec", 1.0), 8, steps)
    share, forward = made.share, made.forward_ms
    assert (share.median, share.low, share.high) == pytest.approx((0.06, 0.04, 0.08))
    assert (forward.median, forward.low, forward.high) == pytest.approx((150, 100, 200))


def test_what_cannot_be_measured_is_refused(folder) -> None:
    with pytest.raises(BenchError, match="No draft"):
        bench_verification(settings(folder, draft="default"), QUIET)
    with pytest.raises(BenchError, match="ended early"):
        bench_verification(settings(folder, steps=2000), QUIET)
    for changes in ({"steps": 0}, {"verifiers": ()}, {"temperature": (-1.0,)}):
        with pytest.raises(ConfigError):
            settings(folder, **changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "4,8"], "--nodes is one number"),
        (["--prompts", "chat"], "--prompts does not go with --verification"),
    ],
)
def test_bad_options_exit_with_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--verification", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_command(folder, tmp_path) -> None:
    arguments = ["--target", str(folder), "--draft", str(folder), "--dtype", "float32", "--num-threads", "1"]
    arguments += ["--batch", "1", "--nodes", "2", "--depth", "1", "--tokens", "2", "--repeats", "1"]
    result = CliRunner().invoke(app, ["bench", "--verification", "--temperature", "0", *arguments])
    assert result.exit_code == 0, result.output
    assert "resispec" in result.output
