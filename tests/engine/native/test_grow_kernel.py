"""Trees grown by the compiled kernel against those grown by torch's operations."""

from __future__ import annotations

import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from resispec.engine.drawing import Drawing
from resispec.engine.known_tree import NOTHING_KNOWN, KnownTree
from resispec.engine.native import grow_kernel_for
from resispec.engine.proposers.base import DraftItem
from resispec.engine.proposers.growing import GrowingTrees
from resispec.engine.request import SamplingParams
from resispec.engine.tree import Level, TreeShape, plan_shape
from resispec.models.device.cpu import CpuDevice

CPU = torch.device("cpu")
NUM_IDS = 700
SHAPES = [
    plan_shape(nodes, depth, greedy=greedy, drawing=drawing, shares_nodes=shares)
    for nodes, depth in ((1, 1), (4, 2), (9, 3), (24, 4))
    for drawing in (Drawing.HEAD_AND_TAIL, Drawing.INDEPENDENT, Drawing.WITHOUT_REPLACEMENT, Drawing.CHAIN)
    for greedy in (False, True)
    for shares in (False, True)
]
GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(temperature=1.0)
TRUNCATED = [SamplingParams(temperature=0.7, top_k=5, top_p=0.8), SamplingParams(temperature=2.0, min_p=0.1)]


@pytest.fixture(autouse=True)
def kernel_is_built() -> None:
    if grow_kernel_for(CPU) is None:
        pytest.skip("no kernels were built")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_kernel_is_there_where_it_can_be_built() -> None:
    assert grow_kernel_for(CPU) is not None


def random_known(random: np.random.Generator, num_nodes: int, ids: list[int]) -> KnownTree:
    """No token is there twice."""
    num_nodes = min(num_nodes, len(ids))
    parents = [int(random.integers(0, node + 1)) for node in range(num_nodes)]
    tokens = random.permutation(ids)[:num_nodes].tolist()
    chances = tuple(random.choice([0.0, 0.1, 0.9], num_nodes).tolist())
    return KnownTree(tuple(tokens), tuple(parents), ("ngram",) * num_nodes, chances)


def laws(random: np.random.Generator, rows: int, size: int, oddities: bool) -> Tensor:
    """Rows of logits, no two of a row alike; some of no use or with few tokens, if with ``oddities``."""
    logits = torch.from_numpy(random.normal(scale=3.0, size=(rows, size + 5)).astype(np.float32))
    if oddities:
        logits[random.random(rows) < 0.1] = -torch.inf
        logits[random.random(rows) < 0.3, 3:] = -torch.inf
        logits[random.random(rows) < 0.1, 7] = torch.nan
        logits[random.random(rows) < 0.1, 8] = torch.inf
    return logits[:, :size]


def grow(
    shape: TreeShape, items: list[DraftItem], seed: int, size: int, vocab_ids: Tensor | None, oddities: bool
) -> tuple[GrowingTrees, list[Tensor]]:
    """The trees, and what the draft would run for each of their levels."""
    random = np.random.default_rng(seed)
    trees, inputs = GrowingTrees(shape, items, CPU), []
    for depth in range(shape.depth):
        trees.take(laws(random, trees.frontier.numel(), size, oddities), None)
        trees.add_level(depth, NUM_IDS, vocab_ids)
        if depth + 1 < shape.depth:
            part = trees.frontier_inputs()
            inputs += [part.token_ids, part.positions, part.rows, *part.masks]
    return trees, inputs


def assert_equal_trees(
    monkeypatch: pytest.MonkeyPatch,
    shape: TreeShape,
    items: list[DraftItem],
    seed: int,
    size: int = NUM_IDS,
    vocab_ids: Tensor | None = None,
    oddities: bool = False,
) -> None:
    ours, our_inputs = grow(shape, items, seed, size, vocab_ids, oddities)
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "runs_native", False)
        theirs, their_inputs = grow(shape, items, seed, size, vocab_ids, oddities)
    for name in ("tokens", "parents", "visible", "frontier"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    torch.testing.assert_close(ours.scores, theirs.scores, rtol=1e-12, atol=1e-12)
    assert len(our_inputs) == len(their_inputs)
    assert all(torch.equal(one, other) for one, other in zip(our_inputs, their_inputs, strict=True))
    for one, other in zip(ours.levels, theirs.levels, strict=True):
        assert torch.equal(one.parents, other.parents)
        assert torch.equal(one.children, other.children)
        for field in fields(one.proposal):
            mine, torchs = getattr(one.proposal, field.name), getattr(other.proposal, field.name)
            if field.name == "tail_probs":
                torch.testing.assert_close(mine, torchs, rtol=1e-12, atol=0)
            elif field.name == "tail_ids":  # beyond the law any token will do
                law = other.proposal.tail_probs > 0
                assert torch.equal(mine[law], torchs[law])
            elif isinstance(mine, Tensor):
                assert torch.equal(mine, torchs), field.name
            else:
                assert mine == torchs, field.name


def requests(
    random: np.random.Generator,
    shape: TreeShape,
    sampling: list[SamplingParams],
    most_known: int,
    ids: list[int] | None = None,
) -> list[DraftItem]:
    items = []
    for row, params in enumerate(sampling):
        known = NOTHING_KNOWN
        if most_known:
            known = random_known(random, int(random.integers(0, most_known + 1)), ids or [*range(NUM_IDS)])
        uniforms = tuple(random.random(shape.num_nodes).tolist())
        items.append(DraftItem((5, row), 3 + row, 40 * row, shape, params, uniforms, known))
    return items


@pytest.mark.parametrize("most_known", [0, 6, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_are_those_of_torchs_operations(
    monkeypatch: pytest.MonkeyPatch, shape: TreeShape, most_known: int
) -> None:
    """At several temperatures, alone and together, with what is known and a request's own truncation."""
    for seed, sampling in enumerate(([PLAIN], [GREEDY], [GREEDY, PLAIN, *TRUNCATED], [TRUNCATED[0]] * 5)):
        items = requests(np.random.default_rng(seed), shape, sampling, most_known)
        assert_equal_trees(monkeypatch, shape, items, seed)


@pytest.mark.parametrize("size", [3, 40, 500, 1500])
def test_drafts_of_any_vocabulary(monkeypatch: pytest.MonkeyPatch, threads: int, size: int) -> None:
    """With ids of the target; rows that are no law or allow few tokens are drafted nothing or little."""
    shape = plan_shape(12, 3, greedy=False)
    vocab_ids = torch.randperm(5000, generator=torch.Generator().manual_seed(size))[:size]
    for seed in range(6):
        items = requests(
            np.random.default_rng(seed), shape, [PLAIN, GREEDY, *TRUNCATED] * 3, 5, vocab_ids.tolist()
        )
        assert_equal_trees(monkeypatch, shape, items, seed, size, vocab_ids, oddities=size > 40)


def test_a_shared_level(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = TreeShape((Level(1, 3, 0), Level(2, 5, 0, shared=True)), Drawing.HEAD)
    for seed in range(20):
        items = requests(np.random.default_rng(seed), shape, [PLAIN, GREEDY, PLAIN], 4 * (seed % 2))
        assert_equal_trees(monkeypatch, shape, items, seed, oddities=seed % 3 == 0)


def test_equal_ones_come_in_the_order_of_their_ids() -> None:
    shape = TreeShape((Level(1, 4, 0),), Drawing.HEAD)
    items = [DraftItem((5,), 3, 0, shape, GREEDY, (0.5,) * 4)]
    trees = GrowingTrees(shape, items, CPU)
    logits = torch.zeros(1, NUM_IDS)
    logits[0, 300] = 1.0
    logits[0, 1] = -0.0
    trees.take(logits, None)
    trees.add_level(0, NUM_IDS, None)
    assert trees.tokens[0].tolist() == [5, 300, 0, 1, 2]
