"""Joint law of the tokens of one step over whole trees: draws, decisions and walks all enumerated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resispec.engine.verifiers.base import Decision
from resispec.engine.verifiers.walk import Topology, walk
from resispec.models.device.cpu import CpuDevice

from .forest import Laws, Prefix, enumerate_steps, exact_joint, joint_law

TREES = json.loads((Path(__file__).parent / "data" / "trees.json").read_text())
TOLERANCE = 1e-9


def laws_of(tree: dict[str, Any]) -> Laws:
    return {tuple(law["prefix"]): (law["p"], law["q"]) for law in tree["laws"]}


@pytest.mark.parametrize("index", range(len(TREES)))
def test_joint_law_and_tokens_per_step(index: int) -> None:
    tree = TREES[index]
    laws, depth = laws_of(tree), tree["depth"]
    outcome = enumerate_steps(laws, tree["head_size"], tree["tail_draws"], depth, share=False)
    assert float(outcome.probability.sum()) == pytest.approx(1, abs=TOLERANCE)
    mean = float((outcome.probability * (outcome.walked.num_kept + 1)).sum())
    assert mean == pytest.approx(tree["tokens_per_step"]["resispec"], abs=TOLERANCE)
    joint = joint_law(outcome, laws, depth + 1)
    assert (joint - exact_joint(laws, depth + 1)).abs().max() < TOLERANCE


def test_equal_draws_may_share_a_node() -> None:
    rng = np.random.default_rng(30)
    prefixes: list[Prefix] = [(), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3))]
    laws = {prefix: (rng.dirichlet([1] * 3).tolist(), rng.dirichlet([1] * 3).tolist()) for prefix in prefixes}
    outcome = enumerate_steps(laws, 0, 2, 2, share=True)
    assert (joint_law(outcome, laws, 3) - exact_joint(laws, 3)).abs().max() < TOLERANCE


def test_the_harness_sees_a_wrong_correction() -> None:
    """Control: corrections drawn from the target instead of the residual must show."""
    laws = laws_of(next(tree for tree in TREES if tree["depth"] == 1 and tree["tail_draws"] == 2))
    outcome = enumerate_steps(laws, 0, 2, 1, share=False)
    target = torch.tensor(laws[()][0], dtype=torch.float64)
    refused = outcome.walked.num_kept[:, None] == 0
    wrong = replace(outcome, last=torch.where(refused, target / target.sum(), outcome.last))
    assert (joint_law(wrong, laws, 2) - exact_joint(laws, 2)).abs().max() > 1e-3


def test_no_tree_at_all() -> None:
    """Requests without candidates: the walk stays at the root."""
    topology = Topology(torch.empty(0, 1, dtype=torch.int64), torch.full((2,), -1), torch.tensor([0, 1]))
    decision = Decision(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64))
    walked = walk(topology, decision, max_depth=3)
    assert walked.num_kept.tolist() == [0, 0]
    assert walked.path.tolist() == [[-1] * 3] * 2


def test_walks_by_gathers_are_those_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random trees, some roots without children, some children without a decision."""
    rng = np.random.default_rng(31)
    lengths = []
    for _ in range(200):
        nodes, slots = int(rng.integers(3, 30)), int(rng.integers(1, 4))
        roots = int(rng.integers(1, 3))
        child_node = np.full((nodes, slots), -1)
        for node in range(roots, nodes):
            child_node[rng.integers(0, node), rng.integers(0, slots)] = node
        expanded = np.flatnonzero((child_node >= 0).any(axis=1))
        row = np.full(nodes, -1)
        row[expanded] = np.arange(len(expanded))
        child_node = child_node[expanded]
        topology = Topology(*(torch.from_numpy(part) for part in (child_node, row, np.arange(roots))))
        kept = rng.integers(0, slots, len(expanded))
        kept[child_node[np.arange(len(expanded)), kept] < 0] = -1
        decision = Decision(torch.from_numpy(kept), torch.zeros(len(expanded)).double())
        depth = int(rng.integers(0, 5))
        on_host = walk(topology, decision, depth)
        with monkeypatch.context() as patch:
            patch.setattr(CpuDevice, "reads_freely", False)
            by_gathers = walk(topology, decision, depth)
        for ours, theirs in zip(*((w.path, w.num_kept, w.final) for w in (on_host, by_gathers)), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.dtype == theirs.dtype
        lengths += on_host.num_kept.tolist()
    assert {0, 1, 2, 3} <= set(lengths)
