"""One stream's step against the memory: what is counted, and that a copy is timed."""

from __future__ import annotations

import io
from collections.abc import Iterable
from statistics import median
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from resispec.engine.bench import floor
from resispec.engine.bench.bandwidth import copy_bandwidth
from resispec.engine.bench.floor import (
    FloorReport,
    bench_floor,
    print_floor,
    random_model,
    weights_read,
    write_floor,
)
from resispec.engine.bench.settings import FloorSettings
from resispec.engine.bench.shapes import SHAPES
from resispec.engine.config import ConfigError
from resispec.server.cli import app

QUIET = Console(quiet=True)
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 128,
}


@pytest.fixture(autouse=True)
def _fast_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "copy_bandwidth", lambda device: 1e9)


def settings(**changes: Any) -> FloorSettings:
    values: dict[str, Any] = {
        "context": 20,
        "steps": 3,
        "repeats": 2,
        "device": "cpu",
        "dtype": "float32",
        "num_threads": 1,
        "offline": True,
    }
    return FloorSettings(**(values | changes))


@pytest.mark.parametrize("tied", [True, False])
def test_what_a_step_reads(tied: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(SHAPES, "small", {**SMALL, "tie_word_embeddings": tied})
    report = bench_floor(settings(shape="small"), QUIET)
    layer = 32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 64 + 2 * 32  # projections, feed-forward, norms
    weights = 2 * layer + 32 + 128 * 32 + (0 if tied else 32)  # final norm, output matrix, a row of the other
    assert report.weight_bytes == 4 * weights
    assert report.kv_bytes == 4 * (2 * 2 * 2 * 8) * (20 + floor._WARM_UP + 1)
    expected = 1e3 * (report.weight_bytes + report.kv_bytes) / 1e9
    assert report.floor_ms.median == pytest.approx(expected)
    assert 0 < report.forward_ms.median < report.step_ms.median
    assert report.ratio.median == pytest.approx(report.step_ms.median / expected, rel=0.5)
    json, markdown = tmp_path / "a.json", tmp_path / "a.md"
    write_floor(report, json, markdown)
    assert msgspec.json.decode(json.read_bytes(), type=FloorReport) == report
    out = io.StringIO()
    print_floor(report, Console(file=out, width=200))
    for text in (out.getvalue(), markdown.read_text()):
        assert f"{report.ratio.median:.2f} (" in text
        assert "small, random weights" in text


def test_only_steps_that_decode_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the prompt's, nor the first ones."""
    monkeypatch.setitem(SHAPES, "small", {**SMALL, "tie_word_embeddings": True})
    counted: list[int] = []

    def record(values: Iterable[float]) -> float:
        listed = list(values)
        counted.append(len(listed))
        return median(listed)

    monkeypatch.setattr("resispec.engine.bench.floor.median", record)
    bench_floor(settings(shape="small", repeats=1), QUIET)
    assert counted[:2] == [3, 3]


def test_a_target(folder: Any) -> None:
    assert bench_floor(settings(target=str(folder), repeats=1), QUIET).target == str(folder)


def test_a_copy_is_timed() -> None:
    """A larger block takes longer, and what is counted is bytes both ways."""
    bandwidth = copy_bandwidth(torch.device("cpu"), 1 << 22)
    assert 1e8 < bandwidth < 1e13


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_of_the_sizes_they_are_called(name: str) -> None:
    model = random_model(SHAPES[name], 64, torch.device("meta"), torch.bfloat16)
    billions = sum(weight.numel() for weight in model.parameters()) / 1e9
    assert round(billions) == int(name.removeprefix("llama-").removesuffix("b"))
    assert weights_read(model) > 1.9e9 * int(billions)


def test_what_cannot_be_measured_is_refused() -> None:
    for changes in ({"steps": 0}, {"context": 0}, {"shape": "llama-9b"}):
        with pytest.raises(ConfigError):
            settings(**changes)
    with pytest.raises(ConfigError, match="on cpu use auto, .*segments"):
        bench_floor(settings(attention="flex"), QUIET)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "4"], "--batch does not go with --floor"),
        (["--shape", "llama-1b", "--target", "x"], "--shape is measured instead of a --target"),
        (["--shape", "llama-9b"], "llama-1b, llama-3b, llama-8b"),
    ],
)
def test_bad_options_exit_with_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--floor", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_command(folder: Any) -> None:
    arguments = ["--target", str(folder), "--dtype", "float32", "--num-threads", "1", "--device", "cpu"]
    arguments += ["--length", "8", "--tokens", "2", "--repeats", "1", "--no-cuda-graphs"]
    result = CliRunner().invoke(app, ["bench", "--floor", *arguments])
    assert result.exit_code == 0, result.output
    assert "x floor" in result.output
