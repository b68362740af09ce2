"""`allowed_token_ids`: the mask itself, and in the running engine with and without trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.grammar.allowed import AllowedTokens
from resispec.engine.grammar.base import pack
from resispec.engine.request import Request, RequestError, SamplingParams, SpeculationParams
from resispec.engine.sampling.masks import token_mask
from resispec.engine.sampling.rows import sampling_rows
from resispec.engine.sampling.weights import target_law

CPU = torch.device("cpu")


@pytest.mark.parametrize("vocab_size", [1, 7, 8, 9, 130])
@pytest.mark.parametrize("rows", [[0, 2], [0, 1, 2, 3]])
def test_packed_sets_become_laws(vocab_size: int, rows: list[int]) -> None:
    rng = np.random.default_rng(vocab_size)
    sets = [sorted(rng.choice(vocab_size, rng.integers(1, vocab_size + 1), replace=False)) for _ in rows]
    packed = torch.from_numpy(np.stack([pack(ids, vocab_size) for ids in sets]))
    logits = torch.from_numpy(rng.normal(size=(4, vocab_size)).astype(np.float32))
    params = [SamplingParams(temperature=1.0)] * 3 + [SamplingParams(temperature=0)]
    mask = token_mask(rows, packed, vocab_size)
    law = target_law(logits, sampling_rows(params, vocab_size, (), CPU, mask)).law
    allowed = dict(zip(rows, sets, strict=True))
    for row in range(4):
        ids = [int(i) for i in allowed.get(row, range(vocab_size))]
        expected = np.zeros(vocab_size)
        if row == 3:
            expected[ids[int(logits[row, ids].argmax())]] = 1
        else:
            expected[ids] = torch.softmax(logits[row, ids].double(), 0).numpy()
        np.testing.assert_allclose((law.weights[row].double() / law.total[row]).numpy(), expected, atol=1e-7)


def test_a_fixed_set_forces_nothing() -> None:
    allowed = AllowedTokens((3,), 128)
    assert allowed.forced(4) == ()
    assert allowed.accepts((3, 3))
    assert not allowed.accepts((3, 4))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verifier", ["resispec", "resispec-tree", "without-replacement"])
def test_only_allowed_tokens_come(tiny: Any, temperature: float, verifier: str) -> None:
    engine = tiny.engine(tiny.model(0), LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1)))
    allowed = (3, 64, 65, 127)
    sampling = SamplingParams(
        temperature=temperature, max_tokens=40, allowed_token_ids=allowed, seed=5, ignore_eos=True
    )
    requests = [
        Request("tree", (5, 6), sampling, SpeculationParams(True, verifier)),
        Request("plain", (5, 6), sampling, SpeculationParams(False)),
        Request("free", (5, 6), replace(sampling, allowed_token_ids=None)),
    ]
    ran = tiny.run(engine, requests)
    for name in ("tree", "plain"):
        assert len(ran.tokens[name]) == 40
        assert set(ran.tokens[name]) <= set(allowed)
    assert set(ran.tokens["free"]) - set(allowed)
    assert ran.last["tree"].metrics.speculation.num_draft_tokens > 0
    if temperature == 0:
        assert ran.tokens["tree"] == ran.tokens["plain"]


def test_an_allowed_end_ends_the_answer(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0))
    ran = tiny.run(engine, [Request("a", (5,), SamplingParams(allowed_token_ids=(tiny.eos,)))])
    assert ran.tokens["a"] == [tiny.eos]
    assert ran.last["a"].finish_reason == "stop"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (128,)}, "allowed_token_ids"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids"),
        ({"allowed_token_ids": (5,), "bad_words": ((5, 5),)}, "bad_words"),
        ({"allowed_token_ids": (1, 9), "stop_token_ids": (9,), "min_tokens": 1}, "min_tokens"),
    ],
)
def test_sets_that_leave_nothing_are_refused(tiny: Any, sampling: dict[str, Any], param: str) -> None:
    engine = tiny.engine(tiny.model(0))
    with pytest.raises(RequestError) as caught:
        engine.add(Request("a", (5,), SamplingParams(**sampling)))
    assert caught.value.param == param
