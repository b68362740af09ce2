"""Audits of cases and trees as plain values for JSON, and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..verifiers.base import AnyVerifier
from ..verifiers.table import VERIFIERS
from ..verifiers.trials import NodeRule
from .ceiling import ceiling
from .node import TooManyError, node_law, thresholds_and_tests
from .proposals import source
from .read import Case, TreeCase
from .trees import tree_error, tree_step

Report = Mapping[str, Any]


def audit_cases(cases: Sequence[Case]) -> Report:
    """``{"cases": [{"verifiers": {name: {"law", "acceptance", "total_variation", "ceiling"}}}]}``.

    `resispec` also has ``thresholds`` and ``accept_probability``. A ceiling that takes too many subsets is
    null, and a verifier that takes too many proposals has the one field ``skipped``, which says so.
    """
    verifiers = VERIFIERS.items()
    return {"cases": [{"verifiers": {name: _case(rule, case) for name, rule in verifiers}} for case in cases]}


def audit_trees(trees: Sequence[TreeCase]) -> Report:
    """``{"trees": [{"verifiers": {name: {"error", "tokens_per_step"}}}]}``.

    ``error`` is the largest difference of the joint law of a step's tokens from the target's.
    """
    verifiers = VERIFIERS.items()
    return {"trees": [{"verifiers": {name: _tree(rule, tree) for name, rule in verifiers}} for tree in trees]}


def _case(verifier: AnyVerifier, case: Case) -> dict[str, Any]:
    node = source(case, verifier.drawing)
    try:
        found = node_law(verifier, node)
    except TooManyError as error:
        return {"skipped": str(error)}
    report: dict[str, Any] = {
        "law": found.law.tolist(),
        "acceptance": found.acceptance,
        "total_variation": float((found.law - node.p).abs().sum()) / 2,
        "ceiling": ceiling(node),
    }
    if verifier.name == "resispec" and isinstance(verifier, NodeRule):
        report["thresholds"], report["accept_probability"] = thresholds_and_tests(node, verifier)
    return report


def _tree(verifier: AnyVerifier, tree: TreeCase) -> dict[str, Any]:
    try:
        step = tree_step(verifier, tree)
    except TooManyError as error:
        return {"skipped": str(error)}
    return {"error": tree_error(tree, step), "tokens_per_step": step.tokens}


def print_cases(report: Report, console: Console) -> None:
    """One line a verifier, over all cases."""
    cases = report["cases"]
    table = Table(
        title=f"Output laws at one node, {len(cases)} cases, enumerated. TV: total variation from the target"
    )
    table.add_column("verifier", no_wrap=True)
    for column in ("exact", "worst TV", "mean acceptance", "of the ceiling", "cases"):
        table.add_column(column, justify="right")
    for name, verifier in VERIFIERS.items():
        found = _found(cases, name)
        ratios = [part["acceptance"] / part["ceiling"] for part in found if (part["ceiling"] or 0) > 1e-9]
        table.add_row(
            name,
            _yes(verifier.exact),
            f"{max((entry['total_variation'] for entry in found), default=0):.1e}",
            f"{_mean([entry['acceptance'] for entry in found]):.4f}",
            f"{_mean(ratios):.4f}" if ratios else "-",
            str(len(found)),
        )
    console.print(table)


def print_trees(report: Report, console: Console) -> None:
    """One line a verifier, over all trees."""
    trees = report["trees"]
    table = Table(title=f"Joint laws of whole trees, {len(trees)} trees, enumerated")
    table.add_column("verifier", no_wrap=True)
    for column in ("exact", "worst error", "mean tokens per step", "trees"):
        table.add_column(column, justify="right")
    for name, verifier in VERIFIERS.items():
        found = _found(trees, name)
        table.add_row(
            name,
            _yes(verifier.exact),
            f"{max((entry['error'] for entry in found), default=0):.1e}",
            f"{_mean([entry['tokens_per_step'] for entry in found]):.4f}",
            str(len(found)),
        )
    console.print(table)


def _found(entries: Sequence[Report], name: str) -> list[Report]:
    parts = [entry["verifiers"][name] for entry in entries]
    return [part for part in parts if "skipped" not in part]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _yes(flag: bool) -> str:
    return "yes" if flag else "NO"
