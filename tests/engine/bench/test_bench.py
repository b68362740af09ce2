"""A whole run on a tiny target that drafts for itself."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from resispec.engine.bench.report import Report, print_report, to_markdown
from resispec.engine.bench.run import bench
from resispec.engine.bench.settings import BenchSettings, Tree
from resispec.engine.bench.tables import to_json
from resispec.server.cli import app

QUIET = Console(quiet=True)


def settings(folder, **changes):
    values: dict[str, Any] = {
        "target": str(folder),
        "draft": str(folder),
        "batch": (1, 2),
        "temperature": (0.0,),
        "prompts": ("chat", "copy"),
        "tokens": 6,
        "repeats": 2,
        "num_threads": 1,
        "device": "cpu",
        "dtype": "float32",
        "offline": True,
    }
    return BenchSettings(**(values | changes))


@pytest.fixture(scope="module")
def report(folder):
    return bench(settings(folder), QUIET)


def test_quantized_targets_are_measured_and_named(folder):
    measured = bench(
        settings(folder, quantization="int8", draft=None, transformers=False, prompts=("chat",), repeats=1),
        QUIET,
    )
    assert measured.complete
    assert measured.dtype == "int8 weights, float32"


def test_every_row_is_measured(report):
    work = {(row.case.contender, row.case.batch) for row in report.rows}
    assert work == {
        ("plain", 1),
        ("plain", 2),
        ("speculative", 1),
        ("speculative", 2),
        ("transformers", 1),
    }
    assert len(report.rows) == 3 * len(work)  # chat, copy and both
    assert report.complete
    for row in report.rows:
        assert row.error is None
        assert row.repeats == 2
        assert row.tokens_per_step.median >= 1  # whether trees pay is the controller's to say
        for figure in (row.reported, row.replayed, row.well_reported):
            assert (figure is None) == (row.case.contender != "speculative")
        assert not row.phases or sum(row.phases.values()) == pytest.approx(1)
        if row.case.contender == "plain":
            assert (row.over["plain"].low, row.over["plain"].high) == (1, 1)
    assert [ratio.name for ratio in report.ratios] == [
        "plain at batch 2 over plain at batch 1",
        "plain over transformers at batch 1",
        "speculative over plain at batch 1",
        "speculative over transformers at batch 1",
        "speculative over plain at batch 2",
    ]


def test_json_round_trip(report):
    assert msgspec.json.decode(to_json(report), type=Report) == report


def test_tables_show_every_row(report):
    out = io.StringIO()
    print_report(report, Console(file=out))
    lines = out.getvalue().splitlines()
    markdown = to_markdown(report).splitlines()
    for row in report.rows:
        speed = f"{row.tokens_per_second.median:.1f} "
        case = row.case
        start = [case.contender, case.prompts, f"{case.temperature:g}", str(case.batch)]
        assert any(line.split()[:4] == start and f" {speed}±" in line for line in lines)
        assert any(line.startswith(f"| {' | '.join(start)} | {speed}(") for line in markdown)
    assert any(line.startswith("Machine: ") and "1 threads" in line for line in lines)
    assert any("float32" in line for line in markdown)


def test_a_missing_draft_is_a_row_and_the_others_are_measured(folder, tmp_path):
    changes = {"draft": str(tmp_path / "missing"), "prompts": ("chat",), "batch": (1,), "repeats": 1}
    report = bench(settings(folder, **changes), QUIET)
    plain, drafted, other = report.rows
    assert (plain.error, other.error) == (None, None)
    assert drafted.error.startswith("ModelError: there is no file or folder")
    assert not report.complete
    assert report.conditions[0].startswith("speculative failed: ModelError: there is no")
    assert "| speculative | chat | 0 | 1 | failed |" in to_markdown(report)


def test_an_engine_without_a_draft_is_not_called_speculative(folder):
    changes = {"draft": "default", "prompts": ("chat",), "batch": (1,), "repeats": 1, "transformers": False}
    _, drafted = bench(settings(folder, **changes), QUIET).rows
    assert drafted.error.startswith("BenchError: No draft was given")


def test_a_sweep_has_a_row_for_every_tree(folder):
    trees = (Tree(4, 1), Tree(8, 1), Tree(8, 2))
    changes = {"trees": trees, "prompts": ("chat",), "batch": (2,), "repeats": 1}
    report = bench(settings(folder, **changes, transformers=False), QUIET)
    steps = {row.case.contender: row.tokens_per_step.median for row in report.rows}
    # The draft is the target itself: 5 decoded tokens, two or three at a time.
    expected = {"speculative 4x1": 5 / 3, "speculative 8x1": 5 / 3, "speculative 8x2": 5 / 2}
    assert steps == {"plain": 1, **expected}


def test_verifiers_proposers_and_modes_have_rows(folder):
    changes = {"prompts": ("copy",), "batch": (1,), "repeats": 1, "transformers": False, "tokens": 12}
    wanted = {"verifiers": ("target",), "proposers": ("ngram", "draft+ngram"), "modes": ("auto", "fixed")}
    report = bench(settings(folder, **changes, **wanted), QUIET)
    steps = {row.case.contender: row.tokens_per_step.median for row in report.rows}
    assert list(steps) == [
        "plain",
        *("speculative target", "speculative ngram", "speculative draft+ngram"),
        *("speculative auto", "speculative fixed"),
    ]
    assert steps["plain"] == 1
    assert steps["speculative fixed"] > 1.5
    alone = settings(folder, draft=None, proposers=("ngram",), **changes)
    assert [row.error for row in bench(alone, QUIET).rows] == [None, None]


def test_ways_of_attention_are_plain_contenders(folder):
    changes = {"prompts": ("chat",), "batch": (2,), "repeats": 1, "draft": None, "transformers": False}
    report = bench(settings(folder, attentions=("segments", "flex"), **changes), QUIET)
    errors = {row.case.contender: row.error for row in report.rows}
    assert list(errors) == ["plain", "plain segments", "plain flex"]
    assert errors["plain"] is errors["plain segments"] is None
    assert "on cpu use auto" in (errors["plain flex"] or "")


def test_a_long_prompt_comes_into_the_middle(folder):
    changes = {"prompts": ("chat",), "batch": (2,), "repeats": 1, "tokens": 24, "intruder": 40, "draft": None}
    report = bench(settings(folder, **changes, assisted=True), QUIET)
    assert [(row.case.contender, row.case.prompts) for row in report.rows[:2]] == [
        ("plain", "chat"),
        ("plain", "chat+40"),
    ]
    for row in report.rows[:2]:
        assert row.error is None
        assert row.gap_max_ms.median >= row.gap_ms.median > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "4"], "--nodes and --depth go together"),
        (["--nodes", "4,8", "--depth", "2"], "--nodes is one number"),
        (["--prompts", "poems"], "'poems'"),
        (["--batch", "x"], "batch is 'x'"),
        (["--sweep", "--draft", "none"], "needs a draft"),
        (["--attention", "segments", "--peer", "vllm=python"], "--attention"),
        (["--peer", "none", "--peer", "vllm=python"], "--peer none"),
    ],
)
def test_bad_options_exit_with_2(arguments, message):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_help():
    result = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for option in ("--batch", "--temperature", "--prompts", "--sweep", "--json", "--no-transformers"):
        assert option in result.output


def test_the_command_shows_and_writes(folder, tmp_path):
    arguments = ["--target", str(folder), "--draft", "none", "--batch", "1", "--temperature", "0"]
    arguments += [
        "--prompts",
        "chat",
        "--tokens",
        "4",
        "--repeats",
        "1",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    arguments += [
        "--num-threads",
        "1",
        "--json",
        str(tmp_path / "b.json"),
        "--markdown",
        str(tmp_path / "b.md"),
    ]
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode((tmp_path / "b.json").read_bytes(), type=Report)
    assert [row.case.contender for row in report.rows] == ["plain", "transformers"]
    assert (tmp_path / "b.md").read_text() == to_markdown(report)
    assert "plain over transformers at batch 1" in result.output
