"""Scrape configuration, rules and alerts: checked and unit-tested by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
SEVERITIES = {"critical", "warning", "info"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


def promtool(*arguments: str | Path) -> None:
    command = ["promtool", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def alerts() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


@needs_promtool
def test_the_configuration_is_valid() -> None:
    """The rules it names included."""
    promtool("check", "config", PROMETHEUS / "prometheus.yml")


@needs_promtool
def test_rules_do_what_their_tests_say() -> None:
    promtool("test", "rules", PROMETHEUS / "tests" / "rules.yml")


def test_every_alert_has_a_unit_test_that_fires() -> None:
    tests = yaml.safe_load((PROMETHEUS / "tests" / "rules.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    names = {alert["alert"] for alert in alerts()}
    assert names == fired == quiet


def test_every_alert_has_a_runbook_and_the_other_way_round() -> None:
    named = {alert["annotations"]["runbook"] for alert in alerts()}
    assert named == {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    for alert in alerts():
        assert alert["labels"]["severity"] in SEVERITIES
        title = (ROOT / alert["annotations"]["runbook"]).read_text().partition("\n")[0]
        assert alert["alert"] in title
