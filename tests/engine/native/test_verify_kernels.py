"""Verification's compiled kernels against torch's operations and the same arithmetic in float64."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from resispec.engine.native import VerifyKernels, kernels_for
from resispec.engine.request import SamplingParams
from resispec.engine.sampling.draw import Residual, draw
from resispec.engine.sampling.rows import sampling_rows
from resispec.engine.sampling.weights import target_law
from resispec.engine.verifiers.base import Decision, Proposal, TargetLaw
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.trials import NodeRule
from resispec.models.device.cpu import CpuDevice

CPU = torch.device("cpu")
SIZES = [1, 15, 16, 31, 100, 512, 513, 5000]


@pytest.fixture
def kernels() -> VerifyKernels:
    found = kernels_for(CPU)
    if found is None:
        pytest.skip("no kernels were built")
    return found


def random_rows(rows: int, size: int, spread: float = 5.0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * spread


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_kernels_are_there_where_they_can_be_built() -> None:
    assert kernels_for(CPU) is not None


def test_another_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "runs_native", False)
    assert kernels_for(CPU) is None


@pytest.mark.parametrize("size", SIZES)
def test_laws(kernels: VerifyKernels, threads: int, size: int) -> None:
    """Of some rows of logits that lie apart, at several temperatures; some tokens are masked."""
    wide = random_rows(9, size + 3)
    wide[:, 1:size:3] = -torch.inf
    before = wide.clone()
    nodes = torch.tensor([8, 0, 3, 3, 5])
    temperature = torch.tensor([1.0, 0.7, 0.0, 1.0, 5.0])
    weights, bad = kernels.laws(wide[:, :size], nodes, temperature)
    assert torch.equal(wide, before)
    assert not bad.any()
    for row, (node, heat) in enumerate(zip(nodes.tolist(), temperature.tolist(), strict=True)):
        logits = wide[node, :size].double()
        if heat == 0:
            exact = torch.nn.functional.one_hot(logits.argmax(), size).double()
        else:
            exact = torch.softmax(logits / np.float32(heat).item(), dim=0)
        torch.testing.assert_close(weights[row].double(), exact, rtol=1e-5, atol=1e-37)
        one = wide[node : node + 1, :size].clone()
        alone, _ = kernels.laws(one, nodes[:1] * 0, temperature[row : row + 1])
        assert torch.equal(alone[0], weights[row]), "the same bits in any company"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_law(kernels: VerifyKernels, size: int, wrong: float) -> None:
    """A number that is none, wherever it stands, or no number at all."""
    places = range(0, size, max(1, size // 40))
    logits = random_rows(len(places), size)
    for row, place in enumerate(places):
        logits[row, place if math.isnan(wrong) or wrong > 0 else slice(None)] = wrong
    nodes = torch.arange(len(places))
    for temperature in (0.0, 1.0, 0.5):
        weights, bad = kernels.laws(logits, nodes, torch.full((len(places),), temperature))
        assert bad.all()
        assert (weights[:, 0] == 1).all()
        assert (weights[:, 1:] == 0).all()
    assert kernels.largest(logits, nodes)[1].all()


@pytest.mark.parametrize("size", SIZES)
def test_largest(kernels: VerifyKernels, threads: int, size: int) -> None:
    """With ties by the hundred: the first of them."""
    wide = random_rows(20, size + 1, 2.0).round()
    nodes = torch.arange(19, -1, -1)
    tokens, bad = kernels.largest(wide[:, :size], nodes)
    assert not bad.any()
    assert tokens.tolist() == [int(np.argmax(wide[node, :size].numpy())) for node in nodes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_sums(kernels: VerifyKernels, threads: int, size: int, dtype: torch.dtype) -> None:
    weights = random_rows(7, size).double().exp().to(dtype)
    rng = np.random.default_rng(size)
    ids = torch.from_numpy(rng.integers(0, size, (7, 30)))
    excluded = torch.from_numpy(rng.random((7, 30)) < 0.5)
    sums = kernels.sums(weights, ids, excluded)
    for row in range(7):
        left = weights[row].double()
        left[ids[row][excluded[row]]] = 0
        assert float(sums[row]) == pytest.approx(math.fsum(left.tolist()), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_draws_are_those_of_the_running_sum(
    kernels: VerifyKernels, threads: int, size: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(size)
    weights = random_rows(60, size).double().exp().to(dtype)
    weights[torch.from_numpy(rng.random((60, size)) < 0.3)] = 0
    ids = torch.from_numpy(rng.integers(0, size, (60, 12)))
    caps = weights.gather(1, ids).double() * torch.from_numpy(rng.choice([0, 0.5, 2, np.inf], (60, 12)))
    caps.nan_to_num_(posinf=torch.inf, nan=torch.inf)
    residual = Residual(weights, ids, caps)
    dense = residual.dense()
    for wanted in (torch.from_numpy(rng.random(60)), *(torch.full((60,), u).double() for u in (0.0, 1.0))):
        tokens, empty = kernels.draw(weights, ids, caps, wanted)
        assert empty.tolist() == (dense.sum(dim=1) == 0).tolist()
        for row in (~empty).nonzero()[:, 0].tolist():
            assert dense[row, tokens[row]] > 0
            running, aim = dense[row].cumsum(0), float(wanted[row] * dense[row].sum())
            doubt = 1e-13 * float(running[-1])  # of sums in another order
            assert float(running[tokens[row]]) > aim - doubt
            assert tokens[row] == 0 or float(running[tokens[row] - 1]) <= aim + doubt


def proposals(seed: int, weights: Tensor) -> Proposal:
    """Heads and tails of all sizes over a large vocabulary, drafted like the target or not at all like it."""
    rng = np.random.default_rng(seed)
    rows, slots, width = len(weights), 6, 40
    tokens = torch.full((rows, slots), -1)
    tail_ids, tail_index = (
        torch.zeros(rows, width, dtype=torch.long),
        torch.zeros(rows, slots, dtype=torch.long),
    )
    tail_probs = torch.zeros(rows, width, dtype=torch.float64)
    num_head, num_tail = (
        torch.from_numpy(rng.integers(0, 3, rows)),
        torch.from_numpy(rng.integers(0, 5, rows)),
    )
    for row in range(rows):
        head, draws = int(num_head[row]), int(num_tail[row])
        likely = torch.argsort(weights[row], descending=True)[: head + width].numpy()
        picked = torch.from_numpy(rng.permutation(likely))
        tokens[row, :head], tail_ids[row] = picked[:head], picked[head:]
        if draws:
            off = torch.from_numpy(rng.normal(0, rng.choice([0.01, 1.0, 4.0]), width))
            q = (weights[row, tail_ids[row]].double() + 1e-9) * off.exp()
            q[int(rng.integers(1, width)) :] = 0
            tail_probs[row] = q / q.sum()
            drawn = torch.from_numpy(rng.choice(width, draws, p=tail_probs[row].numpy()))
            tail_index[row, head : head + draws] = drawn
            tokens[row, head : head + draws] = tail_ids[row, drawn]
    return Proposal(tokens, num_head, num_tail, tail_ids, tail_probs, tail_index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decisions_are_those_of_torch(kernels: VerifyKernels, threads: int, dtype: torch.dtype) -> None:
    """Slot for slot at random uniforms, the same thresholds, and the same law of what is drawn last."""
    rule, kept = ResiSpecVerifier(), 0
    for seed in range(6):
        logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(seed)) * 6
        law = TargetLaw(torch.softmax(logits, dim=1).to(dtype))
        proposal = proposals(seed, law.weights)
        uniforms = torch.from_numpy(np.random.default_rng(seed).random((40, 6)))
        ours = rule.decide(law, proposal, uniforms)
        torchs = NodeRule.decide(rule, law, proposal, uniforms)
        assert ours.child.tolist() == torchs.child.tolist()
        torch.testing.assert_close(ours.threshold, torchs.threshold, rtol=1e-9, atol=1e-9)
        kept += int((ours.child >= 0).sum())
    assert 40 < kept < 200


def test_heads_alone_need_one_uniform(kernels: VerifyKernels) -> None:
    law = TargetLaw(torch.tensor([[0.1, 0.2, 0.3, 0.4]]).repeat(4, 1))
    none = torch.zeros(4, 0)
    proposal = Proposal(
        torch.tensor([[3, 1]]).repeat(4, 1),
        torch.full((4,), 2),
        torch.zeros(4, dtype=torch.long),
        none.long(),
        none.double(),
        torch.zeros(4, 2, dtype=torch.long),
    )
    uniforms = torch.tensor([[0.39], [0.41], [0.59], [0.61]], dtype=torch.float64)
    assert ResiSpecVerifier().decide(law, proposal, uniforms).child.tolist() == [0, 1, 1, -1]


def test_ids_beyond_the_vocabulary_weigh_nothing(kernels: VerifyKernels) -> None:
    """As a draft may name them that knows more tokens than the target."""
    weights = torch.tensor([[1.0, 2.0, 3.0]])
    ids = torch.tensor([[7, 1, -1]])
    assert kernels.sums(weights, ids, torch.ones(1, 3, dtype=torch.bool)).tolist() == [4]
    proposal = Proposal(
        torch.tensor([[7, 8, 1]]),
        torch.tensor([1]),
        torch.tensor([2]),
        torch.tensor([[8, 1]]),
        torch.tensor([[0.5, 0.5]], dtype=torch.float64),
        torch.tensor([[0, 0, 1]]),
    )
    decided = ResiSpecVerifier().decide(TargetLaw(weights), proposal, torch.zeros(1, 3, dtype=torch.float64))
    assert decided.child.tolist() == [2]


def test_a_step_draws_the_same_tokens_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws differ by roundings of float32, so a uniform next to a boundary could tell them apart: none is."""
    logits = random_rows(200, 3000, 3.0)
    rows = sampling_rows([SamplingParams(temperature=0.8), SamplingParams(top_p=0.9)] * 100, 3000, (), CPU)
    rule, drawn, laws = ResiSpecVerifier(), [], []
    uniforms = torch.from_numpy(np.random.default_rng(3).random(200))
    for runs_native in (True, False):
        monkeypatch.setattr(CpuDevice, "runs_native", runs_native)
        law = target_law(logits, rows).law
        proposal = proposals(1, law.weights)
        childless = Decision(torch.full((200,), -1), torch.full((200,), 0.9, dtype=torch.float64))
        residual = rule.residual(law, replace(proposal, max_tail=4), childless)
        drawn.append(draw(residual, uniforms).tokens.tolist())
        laws.append(law.weights)
    torch.testing.assert_close(laws[0], laws[1], rtol=1e-5, atol=1e-12)
    assert drawn[0] == drawn[1]
