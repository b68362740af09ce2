"""The processed law at a node, against naive implementations of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from resispec.engine.request import SamplingParams
from resispec.engine.sampling.penalties import seen_tokens
from resispec.engine.sampling.rows import sampling_rows
from resispec.engine.sampling.sums import row_sums, row_sums_without
from resispec.engine.sampling.truncation import truncation_cutoff
from resispec.engine.sampling.weights import NodeContext, adjusted_logits, greedy_tokens, target_law

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("either_way")
EOS = (3,)


def naive_law(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
) -> NDArray[np.float64]:
    """One node, plain loops. ``output`` includes the draft tokens on the node's path."""
    logits = logits.astype(np.float64)
    law: NDArray[np.float64] = np.zeros(len(logits))
    for token in set(prompt) | set(output):
        rep = params.repetition_penalty
        logits[token] = logits[token] / rep if logits[token] > 0 else logits[token] * rep
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    for token, bias in params.logit_bias:
        logits[token] += bias
    if len(output) < params.min_tokens:
        logits[list({*EOS, *params.stop_token_ids})] = -np.inf
    if params.temperature == 0:
        law[int(np.argmax(logits))] = 1
        return law
    law = np.exp((logits - logits.max()) / params.temperature)
    law /= law.sum()
    if 0 < params.top_k < len(law):
        law[law < np.sort(law)[-params.top_k]] = 0
        law /= law.sum()
    if params.top_p < 1:
        down = np.sort(law)[::-1]
        needed = int(np.argmax(np.cumsum(down) >= params.top_p))
        law[law < down[needed]] = 0
        law /= law.sum()
    law[law < params.min_p * law.max()] = 0
    law /= law.sum()
    return law


def random_params(rng: np.random.Generator) -> SamplingParams:
    def maybe(value: float, off: float) -> float:
        return value if rng.random() < 0.5 else off

    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.8])),
        top_k=int(maybe(int(rng.integers(1, 60)), 0)),
        top_p=float(maybe(rng.uniform(0.05, 0.999), 1.0)),
        min_p=float(maybe(rng.uniform(0, 0.3), 0.0)),
        presence_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        frequency_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        repetition_penalty=float(maybe(rng.uniform(0.5, 2), 1.0)),
        logit_bias=((int(rng.integers(50)), float(rng.uniform(-5, 5))),) if rng.random() < 0.5 else (),
        min_tokens=int(maybe(4, 0)),
        stop_token_ids=(7,) if rng.random() < 0.5 else (),
    )


def test_all_steps_together() -> None:
    rng = np.random.default_rng(40)
    nodes, vocab, depth = 400, 50, 4
    params = [random_params(rng) for _ in range(nodes)]
    logits = rng.normal(0, 2, (nodes, vocab)).astype(np.float32)
    prompts = [rng.integers(0, vocab, rng.integers(1, 20)).tolist() for _ in range(nodes)]
    outputs = [rng.integers(0, vocab, rng.integers(0, 4)).tolist() for _ in range(nodes)]
    path = np.full((nodes, depth), -1)
    for row in path:
        length = rng.integers(0, depth + 1)
        row[:length] = rng.integers(0, vocab, length)
    rows = sampling_rows(params, vocab, EOS, CPU)
    assert rows.penalties is not None
    chosen = rows.penalties.rows
    context = NodeContext(
        torch.from_numpy(path),
        torch.tensor([len(output) for output in outputs]),
        seen_tokens([prompts[i] for i in chosen], [outputs[i] for i in chosen], CPU),
    )
    before = torch.from_numpy(logits.copy())
    laws = target_law(before, rows, context)
    assert torch.equal(before, torch.from_numpy(logits)), "the caller's logits are left alone"
    assert not laws.bad.any()
    got = (laws.law.weights.double() / laws.law.total[:, None]).numpy()
    for i in range(nodes):
        drafted = path[i][path[i] >= 0].tolist()
        expected = naive_law(logits[i], params[i], prompts[i], outputs[i] + drafted)
        np.testing.assert_allclose(got[i], expected, rtol=2e-5, atol=1e-7, err_msg=str(params[i]))


@pytest.mark.parametrize("top_k", [0, 1, 255, 256, 300, 4096, 4100])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.9999, 1.0])
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_truncation_of_a_large_vocabulary(top_k: int, top_p: float, spread: float) -> None:
    """Rows that a few hundred weights settle, and rows that need the full sort, in one call."""
    if top_k == 0 and top_p == 1.0:
        return
    rng = np.random.default_rng(41)
    logits = rng.normal(0, spread, (3, 5000)).astype(np.float32)
    logits[1] = np.round(logits[1] * 2) / 2  # ties by the hundred
    params = SamplingParams(top_k=top_k, top_p=top_p)
    rows = sampling_rows([params] * 3, 5000, EOS, CPU)
    law = target_law(torch.from_numpy(logits), rows).law
    got = law.weights.numpy() > 0
    for i in range(3):
        weights = np.exp(logits[i] - logits[i].max()).astype(np.float64)
        expected = naive_law(logits[i], params) > 0
        # A weight within rounding of the boundary may fall on either side.
        doubtful = weights[got[i] != expected]
        assert doubtful.size == 0 or np.ptp(doubtful) < 1e-6
        assert abs(weights[got[i]].sum() / weights[expected].sum() - 1) < 1e-3


def test_ties_at_the_boundary_are_all_kept() -> None:
    weights = torch.tensor([[1.0, 0.5, 0.5, 0.25], [1.0, 1.0, 1.0, 1.0]])
    cutoff = truncation_cutoff(weights, torch.tensor([4, 2]), torch.tensor([0.5, 1.0]).double())
    assert cutoff.tolist() == [0.5, 1.0]


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 5.0]])
    rows = sampling_rows([SamplingParams(temperature=0)] * 2, 3, EOS, CPU)
    law = target_law(logits, rows).law
    assert law.weights.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert law.total.tolist() == [1, 1]


def test_greedy_tokens_are_those_of_the_law() -> None:
    """With and without rules, ties and bad rows included; the logits are left alone."""
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3)).mul(4).round()  # many ties
    logits[4, 20], logits[5] = torch.nan, -torch.inf
    ruled = SamplingParams(temperature=0, logit_bias=((7, 100.0),), min_tokens=9, repetition_penalty=1.3)
    for params in (SamplingParams(temperature=0), ruled):
        rows = sampling_rows([params] * 6, 40, EOS, CPU)
        assert rows.all_greedy
        seen = seen_tokens([[1, 2]] * 6, [[7]] * 6, CPU)
        context = NodeContext(torch.full((6, 0), -1), torch.ones(6, dtype=torch.long), seen)
        before = logits.clone()
        tokens, bad = greedy_tokens(logits, rows, context)
        assert torch.equal(logits.nan_to_num(), before.nan_to_num())
        laws = target_law(logits, rows, context)
        assert bad.tolist() == laws.bad.tolist() == [False] * 4 + [True] * 2
        assert tokens[~bad].tolist() == laws.law.weights.argmax(dim=1)[~bad].tolist()
        assert params is not ruled or tokens[:4].tolist() == [7] * 4
    assert not sampling_rows([SamplingParams(temperature=0), SamplingParams()], 40, EOS, CPU).all_greedy
    with pytest.raises(ValueError, match="need"):
        greedy_tokens(logits, sampling_rows([ruled] * 6, 40, EOS, CPU))


def test_one_bad_row_is_flagged_and_the_others_are_untouched() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    logits[1, 3], logits[2], logits[3, 0] = torch.nan, -torch.inf, torch.inf
    params = SamplingParams(top_k=5, top_p=0.9, min_p=0.1)
    laws = target_law(logits, sampling_rows([params] * 5, 40, EOS, CPU))
    assert laws.bad.tolist() == [False, True, True, True, False]
    assert torch.isfinite(laws.law.weights).all()
    assert (laws.law.total > 0).all()
    alone = target_law(logits[:1], sampling_rows([params], 40, EOS, CPU))
    assert torch.equal(laws.law.weights[0], alone.law.weights[0])


def test_temperatures_too_small_for_float32_are_still_a_law() -> None:
    rows = sampling_rows([SamplingParams(temperature=1e-60)], 3, EOS, CPU)
    law = target_law(torch.tensor([[1.0, 2.0, 2.0]]), rows).law
    assert law.weights.tolist() == [[0, 0.5, 0.5]]


def test_min_tokens_counts_along_the_path() -> None:
    params = SamplingParams(min_tokens=3, stop_token_ids=(1,))
    rows = sampling_rows([params] * 3, 5, EOS, CPU)
    context = NodeContext(torch.tensor([[-1, -1], [4, -1], [4, 4]]), torch.tensor([1, 1, 1]))
    allowed = target_law(torch.zeros(3, 5), rows, context).law.weights > 0
    masked = [True, False, True, False, True]
    assert allowed.tolist() == [masked, masked, [True] * 5]


def test_what_no_row_uses_costs_nothing() -> None:
    rows = sampling_rows([SamplingParams()] * 2, 9, EOS, CPU)
    assert (rows.truncation, rows.penalties, rows.bias, rows.masked) == (None,) * 4
    logits = torch.zeros(2, 9)
    assert adjusted_logits(logits, rows, None) is logits


def test_a_missing_context_is_refused() -> None:
    logits = torch.zeros(1, 9)
    for params in (SamplingParams(presence_penalty=1), SamplingParams(min_tokens=1)):
        with pytest.raises(ValueError, match="need"):
            target_law(logits, sampling_rows([params], 9, EOS, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_in_float64(dtype: torch.dtype) -> None:
    weights = torch.rand(11, 3000, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    torch.testing.assert_close(row_sums(weights), weights.double().sum(dim=1), rtol=1e-14, atol=0)
    ids = torch.tensor([[0, 7, 7, 0]]).expand(11, -1).contiguous()
    excluded = torch.tensor([[False, True, False, False]]).expand(11, -1)
    expected = weights.double().sum(dim=1) - weights[:, 7].double()
    torch.testing.assert_close(row_sums_without(weights, ids, excluded), expected, rtol=1e-13, atol=0)
    assert row_sums(weights[:0]).shape == (0,)


def test_outside_mass_is_summed_not_subtracted() -> None:
    """A tail that holds all but 1e-12 of the mass: the difference from 1 would be rounding noise."""
    weights = torch.tensor([[1.0, 1e-12, 1.0]], dtype=torch.float64)
    outside = row_sums_without(weights, torch.tensor([[0, 2]]), torch.tensor([[True, True]]))
    assert outside.item() == 1e-12


class Counted(tuple):  # type: ignore[type-arg]
    """A tuple that counts how often it is read."""

    __slots__ = ()
    reads = 0

    def __iter__(self) -> Any:
        type(self).reads += 1
        return super().__iter__()


def test_a_long_bias_is_read_once_a_request() -> None:
    """It may name the whole vocabulary; reading that at every node would hold up everybody's step."""
    Counted.reads = 0
    params = SamplingParams(logit_bias=Counted([(3, 1.5), (0, -2.0)]))
    alone = sampling_rows([params], 9, EOS, CPU).bias
    reads = Counted.reads
    bias = sampling_rows([SamplingParams(), *[params] * 20], 9, EOS, CPU).bias
    assert Counted.reads == 2 * reads > 0
    assert alone is not None
    assert bias is not None
    assert bias.nodes.tolist() == [node for node in range(1, 21) for _ in range(2)]
    assert bias.tokens.tolist() == alone.tokens.tolist() * 20 == [3, 0] * 20
    assert bias.values.tolist() == [1.5, -2.0] * 20
