"""What dashboards, rules and documents call a metric is one of the server's, and the other way round."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from resispec.engine.outputs import EngineInfo, SourceCounts, SpeculationStats, StepStats
from resispec.server.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCUMENT = ROOT / "docs" / "operations.md"
NAME = re.compile(r"(?<![\w:])resispec_\w+(?![\w:])")
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}

INFO = EngineInfo(
    target="t",
    draft="d",
    target_path="/t",
    device="cpu",
    dtype="float32",
    quantization="none",
    max_model_len=64,
    max_num_seqs=4,
    vocab_size=128,
    eos_token_ids=(1,),
    verifier="resispec",
    verifiers=("resispec",),
    proposers=("draft",),
    max_tree_nodes=12,
    max_tree_depth=3,
    kv_rows=100,
    kv_bytes_per_row=10,
)
STATS = StepStats(
    speculation=(
        SpeculationStats(
            "resispec", True, 1, 2, (1,), (2,), (1,), (1,), (1,), by_source=(SourceCounts("draft", 2, 1),)
        ),
    ),
    speculation_off=(("disabled", 1),),
    phase_seconds=(("draft", 0.001),),
)


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    metrics = Metrics(INFO, "m", "1")
    metrics.observe_step(STATS)
    text, _ = metrics.render("")
    return list(text_string_to_metric_families(text.decode()))


def series(family: Metric) -> set[str]:
    """The names that queries use."""
    return {family.name + part for part in PARTS[family.type]}


def expressions() -> Iterator[str]:
    for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        board = json.loads(path.read_text())
        yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
        yield from (json.dumps(variable["query"]) for variable in board["templating"]["list"])
    for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
        groups: list[dict[str, Any]] = yaml.safe_load(path.read_text())["groups"]
        yield from (rule["expr"] for group in groups for rule in group["rules"])
    for text in yaml.safe_load((DEPLOY / "prometheus" / "tests" / "rules.yml").read_text())["tests"]:
        yield from (entry["series"] for entry in text["input_series"])


def recorded() -> set[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules" / "recording.yml").read_text())["groups"]
    return {rule["record"] for group in rules for rule in group["rules"]}


def test_queries_name_what_exists(families: list[Metric]) -> None:
    named = {name for expr in expressions() for name in NAME.findall(expr)}
    existing = {name for family in families for name in series(family)}
    assert named <= existing, named - existing
    used = {name for expr in expressions() for name in re.findall(r"\w+:resispec_\w+:\w+", expr)}
    assert used <= recorded(), used - recorded()


def test_every_metric_is_on_a_dashboard_or_in_a_rule(families: list[Metric]) -> None:
    named = {name for expr in expressions() for name in NAME.findall(expr)}
    unseen = [family.name for family in families if not series(family) & named]
    assert not unseen


def test_the_documented_table_is_the_servers_metrics(families: list[Metric]) -> None:
    """Name, kind and labels of each."""
    rows = re.findall(r"^\| `(resispec_\w+)` \| (\w+) \| (.*?) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    existing = {
        (
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            tuple(label for label in family.samples[0].labels if label != "le"),
        )
        for family in families
    }
    assert documented == existing
    assert len(rows) == len(documented)


def test_documents_name_what_exists(families: list[Metric]) -> None:
    existing = {name for family in families for name in (family.name, *series(family))}
    for path in [*(ROOT / "docs").rglob("*.md"), *DEPLOY.rglob("*.md")]:
        named = set(NAME.findall(path.read_text()))
        assert named <= existing, f"{path.name}: {named - existing}"
