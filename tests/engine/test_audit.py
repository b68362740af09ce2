"""The audit against an independent implementation, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resispec.engine.audit.ceiling import ceiling
from resispec.engine.audit.command import run
from resispec.engine.audit.node import TooManyError, node_law
from resispec.engine.audit.proposals import Source, source
from resispec.engine.audit.read import Case, read_cases
from resispec.engine.audit.report import audit_cases, audit_trees
from resispec.engine.audit.trees import target_joint, tree_error, tree_step
from resispec.engine.config import ConfigError
from resispec.engine.drawing import Drawing
from resispec.engine.verifiers.table import VERIFIERS

DATA = Path(__file__).parents[1] / "laws" / "data"
CASES: list[dict[str, Any]] = json.loads((DATA / "verification.json").read_text())
TREES: list[dict[str, Any]] = json.loads((DATA / "trees.json").read_text())
TOLERANCE = 1e-9
SMALL = [index for index, case in enumerate(CASES) if len(case["p"]) ** case["tail_draws"] < 5000]
COMMAND = [sys.executable, "-m", "resispec.server.cli", "audit"]
KEYS = {"specinfer", "without-replacement", "spectr"}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("start", range(0, len(SMALL), 16))
def test_cases_against_an_independent_implementation(start: int, tmp_path: Path) -> None:
    chosen = [CASES[index] for index in SMALL[start : start + 16]]
    report = json.loads(json.dumps(audit_cases(read_cases(write(tmp_path / "cases.json", chosen)))))
    for case, entry in zip(chosen, report["cases"], strict=True):
        found, expected = entry["verifiers"], case["resispec"]
        assert set(found) == set(VERIFIERS)
        for name, part in found.items():
            assert part["law"] == pytest.approx(case["p"], abs=TOLERANCE) or name == "resispec-paper"
            assert part["acceptance"] <= part["ceiling"] + TOLERANCE or name == "resispec-paper"
        ours = found["resispec"]
        assert ours["acceptance"] == pytest.approx(expected["acceptance"], abs=TOLERANCE)
        assert ours["ceiling"] == pytest.approx(expected["ceiling"], abs=TOLERANCE)
        if expected["acceptance"] < 1 - TOLERANCE:  # else one choice of thresholds of many
            assert ours["thresholds"] == pytest.approx(expected["thresholds"], abs=TOLERANCE)
            for mine, theirs in zip(ours["accept_probability"], expected["accept_probability"], strict=True):
                assert mine == pytest.approx(theirs, abs=1e-8)
        for name in KEYS & {key.replace("_", "-") for key in case.get("candidates_from_q_ignoring_head", {})}:
            value = case["candidates_from_q_ignoring_head"][name.replace("-", "_")]
            assert found[name]["acceptance"] == pytest.approx(value, abs=TOLERANCE)
        if "resispec_paper" in case:
            printed = case["resispec_paper"]
            assert found["resispec-paper"]["law"] == pytest.approx(printed["law"], abs=TOLERANCE)
            error = np.abs(np.subtract(printed["law"], case["p"])).sum() / 2
            assert found["resispec-paper"]["total_variation"] == pytest.approx(error, abs=TOLERANCE)


def test_trees_against_an_independent_implementation(tmp_path: Path) -> None:
    out = subprocess.run(
        [*COMMAND, "--json", "--trees", str(write(tmp_path / "trees.json", TREES))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    worst_printed = 0.0
    for tree, entry in zip(TREES, json.loads(out)["trees"], strict=True):
        for name, part in entry["verifiers"].items():
            if name == "resispec-paper":
                worst_printed = max(worst_printed, part["error"])
                continue
            assert part["error"] < TOLERANCE
            if name in tree["tokens_per_step"]:
                assert part["tokens_per_step"] == pytest.approx(tree["tokens_per_step"][name], abs=TOLERANCE)
    assert worst_printed > 0.1


def test_short_cuts_show_what_all_tuples_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(70)
    for name in ("resispec", "resispec-tree", "specinfer", "spectr", "block", "target"):
        for _ in range(10):
            p, q = rng.dirichlet([0.5] * 5), rng.dirichlet([1.0] * 5)
            node = source(Case(tuple(p), tuple(q), (1, 0), 3), VERIFIERS[name].drawing)
            every = node_law(VERIFIERS[name], node)
            with monkeypatch.context() as patch:
                patch.setattr("resispec.engine.audit.node._FEW_TUPLES", 1)
                short = node_law(VERIFIERS[name], node)
            torch.testing.assert_close(every.law, short.law, rtol=0, atol=1e-12)
            assert every.acceptance == pytest.approx(short.acceptance, abs=1e-12)


def test_large_cases(tmp_path: Path) -> None:
    rng = np.random.default_rng(71)
    p, q = rng.dirichlet([1.0] * 60).tolist(), rng.dirichlet([1.0] * 60).tolist()
    case = {"p": p, "q": q, "head": [3], "tail_draws": 6}
    found = audit_cases(read_cases(write(tmp_path / "c.json", [case])))["cases"][0]["verifiers"]
    for name in ("resispec", "resispec-tree", "specinfer", "spectr", "block"):
        assert found[name]["total_variation"] < TOLERANCE
    for name in ("without-replacement", "target", "resispec-paper"):
        assert "proposals" in found[name]["skipped"]
    with pytest.raises(TooManyError):
        node_law(VERIFIERS["target"], source(Case(tuple(p), tuple(q), (), 6), Drawing.HEAD_AND_TAIL))


def brute_force_ceiling(node: Source) -> float:
    """An optimal transport by linear programming: from tuples of candidates to tokens."""
    from itertools import permutations, product

    from scipy.optimize import linprog

    places = range(len(node.support))
    tuples = list(
        permutations(places, node.num_tail) if node.distinct else product(places, repeat=node.num_tail)
    )
    weights = []
    for draws in tuples:
        weight, left = 1.0, list(node.q)
        for place in draws:
            weight *= left[place] / sum(left)
            if node.distinct:
                left[place] = 0
        weights.append(weight)
    arcs = [
        (row, token)
        for row, draws in enumerate(tuples)
        for token in {*node.head, *(node.support[place] for place in draws)}
    ]
    limits = np.zeros((len(tuples) + len(node.p), len(arcs)))
    for arc, (row, token) in enumerate(arcs):
        limits[row, arc] = limits[len(tuples) + token, arc] = 1
    solved = linprog(-np.ones(len(arcs)), A_ub=limits, b_ub=[*weights, *node.p.tolist()])
    return -float(solved.fun)


@pytest.mark.parametrize("drawing", [Drawing.HEAD_AND_TAIL, Drawing.WITHOUT_REPLACEMENT, Drawing.CHAIN])
def test_the_ceiling_is_the_optimal_transport(drawing: Drawing) -> None:
    rng = np.random.default_rng(72)
    for _ in range(12):
        p, q = rng.dirichlet([0.7] * 5), rng.dirichlet([0.7] * 5)
        head = (4,) if drawing is Drawing.HEAD_AND_TAIL else ()
        node = source(Case(tuple(p), tuple(q), head, int(rng.integers(1, 4))), drawing)
        assert ceiling(node) == pytest.approx(brute_force_ceiling(node), abs=1e-8)


def test_the_tree_audit_sees_a_wrong_law(tmp_path: Path) -> None:
    from resispec.engine.audit.read import read_trees

    [tree] = read_trees(write(tmp_path / "t.json", TREES[:1]))
    step = tree_step(VERIFIERS["resispec-paper"], tree)
    assert tree_error(tree, step) > 1e-3
    assert float(target_joint(tree).sum()) == pytest.approx(1)
    assert set(audit_trees([tree])["trees"][0]["verifiers"]) == set(VERIFIERS)


GOOD = {"p": [0.5, 0.5], "q": [0.25, 0.75], "head": [], "tail_draws": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"p": [1.5, -0.5]}, r"p\[1\] is -0.5"),
        ({"q": [0.5, 0.6]}, "q sums to 1.1, not to 1"),
        ({"p": [float("nan"), 1.0]}, r"p\[0\] is nan"),
        ({"p": [0.2, 0.3, 0.5]}, "p has 3 entries and q has 2"),
        ({"head": [2]}, "head names token 2, but tokens are 0 to 1"),
        ({"head": [1, 1]}, "head names a token twice"),
        ({"head": [-1]}, "head must be a list of token ids"),
        ({"tail_draws": -1}, "tail_draws is -1"),
        ({"tail_draws": 1.5}, "tail_draws is 1.5"),
        ({"p": []}, "p must be a list"),
        ({"p": None}, "p must be a list"),
        ({"p": ["a", 1.0]}, r"p\[0\] is 'a'"),
    ],
)
def test_a_bad_case_is_refused_with_its_number(tmp_path: Path, change: Any, reason: str) -> None:
    path = write(tmp_path / "cases.json", [GOOD, {**GOOD, **change}])
    with pytest.raises(ConfigError, match=rf"case 2 \(index 1\): {reason}"):
        read_cases(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("{}", "must hold a list"),
        ("[]", "at least one"),
        ("[3]", "case 1 .* not a JSON"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=reason):
        read_cases(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_cases(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"laws": TREES[0]["laws"][:-1]}, r"the law of prefix \[2, 2\] is missing"),
        ({"laws": TREES[0]["laws"][1:]}, r"the law of prefix \[\] is missing"),
        ({"depth": None}, "depth is None"),
        ({"head_size": 4}, "head_size is 4, but there are 3 tokens"),
    ],
)
def test_a_bad_tree_is_refused_with_its_number(tmp_path: Path, change: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"tree 1 \(index 0\).*{reason}"):
        run(None, write(tmp_path / "t.json", [{**TREES[0], **change}]), as_json=True)


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = write(tmp_path / "c.json", [CASES[index] for index in SMALL[:3]])
    run(cases, write(tmp_path / "t.json", TREES[4:6]), as_json=False)
    shown = capsys.readouterr().out
    for name in VERIFIERS:
        assert shown.count(name) >= 2


def test_exit_codes(tmp_path: Path) -> None:
    for arguments, reason in (
        ([], "--cases FILE"),
        (
            ["--cases", str(write(tmp_path / "c.json", [{**GOOD, "q": [1, 1]}]))],
            "case 1 (index 0): q sums to 2",
        ),
    ):
        result = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert reason in result.stderr
