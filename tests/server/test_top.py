"""``resispec top``: figures between two scrapes of real metrics, what people see, and servers that fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from resispec.engine.outputs import EngineInfo, SpeculationStats, StepStats
from resispec.server.metrics import Metrics
from resispec.server.top.screen import screen
from resispec.server.top.snapshot import Interval, Snapshot, parse

STEP = StepStats(
    num_running=3,
    num_waiting=2,
    kv_usage_target=0.5,
    prompt_tokens=40,
    generation_tokens=7,
    iteration_tokens=15,
    prefix_cache_queries=100,
    prefix_cache_hits=25,
    time_to_first_token=(0.2,),
    inter_token_latency=(0.03, 0.03, 0.03, 0.07),
    speculation=(SpeculationStats("resispec", True, 3, 12, (2, 1, 0), (4, 4, 4), (2, 1), (3, 3), (3, 0)),),
    speculation_off=(("load", 4),),
    phase_seconds=(("verify", 0.03), ("draft", 0.01)),
)


@pytest.fixture
def metrics() -> Metrics:
    info: dict[str, Any] = {
        "target": "t",
        "draft": "d",
        "target_path": "t",
        "device": "cpu",
        "dtype": "float32",
        "quantization": "none",
        "max_model_len": 100,
        "max_num_seqs": 4,
        "vocab_size": 10,
        "eos_token_ids": (1,),
        "verifier": "resispec",
        "verifiers": ("resispec",),
        "proposers": ("draft",),
        "max_tree_nodes": 4,
        "max_tree_depth": 2,
        "kv_rows": 100,
        "kv_bytes_per_row": 10,
    }
    return Metrics(EngineInfo(**info), "tiny", "1.2")


def scrape(metrics: Metrics, time: float) -> Snapshot:
    return parse(metrics.render("text/plain")[0].decode(), time)


def between(metrics: Metrics, steps: int, seconds: float) -> Interval:
    metrics.observe_step(STEP)  # before: must not count
    first = scrape(metrics, 5.0)
    for _ in range(steps):
        metrics.observe_step(STEP)
    return Interval(first, scrape(metrics, 5.0 + seconds))


def test_figures_are_of_the_interval(metrics: Metrics) -> None:
    interval = between(metrics, steps=4, seconds=2.0)
    assert interval.rate("generation_tokens_total") == 14
    assert interval.change("spec_decode_num_drafts_total", verifier="resispec") == 12
    assert interval.mean("acceptance_length") == 2
    assert interval.ratio("prefix_cache_hits_total", "prefix_cache_queries_total") == 0.25
    assert interval.ratio("request_success_total", "request_failure_total") is None
    # Twelve of sixteen lie in the bucket from 20 to 30 ms: the median is two thirds up in it.
    assert interval.quantile(0.5, "inter_token_latency_seconds") == pytest.approx(0.02 + 0.01 * 8 / 12)
    assert interval.quantile(0.5, "e2e_request_latency_seconds") is None


def test_a_restart_is_no_negative_rate(metrics: Metrics) -> None:
    later = between(metrics, steps=3, seconds=1.0).last
    restarted = replace(scrape(metrics, 9.0), samples={"generation_tokens_total": {frozenset(): 5.0}})
    assert Interval(later, restarted).change("generation_tokens_total") == 5


def test_what_people_see(metrics: Metrics) -> None:
    console = Console(record=True, width=130)
    console.print(
        screen("http://x", between(metrics, steps=4, seconds=2.0), [0, 5, 10], "gone; trying again")
    )
    shown = console.export_text()
    for text in (
        *("ResiSpec 1.2", "tiny, draft d, float32", "3 running, 2 waiting", "14.0/s generated"),
        *("25% of prompts cached", "first token 175 ms", "████████████░░░░░░░░░░░░ 50%", "▁▅█"),
        "resispec: 2.00 tokens a step, trees of 4.0, 25% of them kept; by depth 0.67 0.33",
        *(
            "without a tree: 16 load",
            "2.0/s, 40.0 ms, 15.0 tokens each; draft 25%, verify 75%",
            "gone; trying",
        ),
    ):
        assert text in shown, shown


def test_an_idle_server_has_figures_too(metrics: Metrics) -> None:
    snapshot = scrape(metrics, 1.0)
    console = Console(record=True, width=100)
    console.print(screen("http://x", Interval(snapshot, snapshot), [], None))
    assert "no trees" in console.export_text()


@pytest.mark.parametrize("text", ["", "<html>", "resispec_up 1\n", "x{ 1"])
def test_what_is_no_exposition_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text, 0.0)


@pytest.mark.parametrize(
    ("url", "reason"), [("localhost:1", "is no address"), ("http://localhost:1", "no answer from")]
)
def test_no_server(url: str, reason: str) -> None:
    command = [sys.executable, "-m", "resispec.server.cli", "top", url, "--once"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert reason in result.stderr
