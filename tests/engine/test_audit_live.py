"""The audit of a running server: its transform is uniform for the right law, and not for a wrong one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from resispec.engine.audit.live import Answer, LiveLaws, place_in_law
from resispec.engine.audit.settings import LiveSettings
from resispec.engine.audit.uniformity import SIGNIFICANCE, fewest_answers, uniformity_tests, verdict
from resispec.engine.build import LoadedTarget
from resispec.engine.config import ConfigError

V = 6
PROMPTS = ((3, 1, 4), (2, 2, 0, 5, 1))
TOKENS = 3


def loaded(tiny: Any) -> LoadedTarget:
    return LoadedTarget(tiny.model(0, vocab_size=V), tiny.tokenizer(), "tiny", 256, V, (1,), {})


def law_after(model: Any, prefix: tuple[int, ...], temperature: float) -> np.ndarray:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]
    law: np.ndarray = torch.softmax(logits.double() / temperature, 0).numpy()
    return law


def sampled(model: Any, count: int, temperature: float, *, eos: int | None) -> list[Answer]:
    """Answers drawn token by token from transformers' own forward."""
    generator = np.random.default_rng(4)
    laws: dict[tuple[int, ...], np.ndarray] = {}
    answers = []
    for number in range(count):
        prompt = PROMPTS[number % 2]
        ids: tuple[int, ...] = ()
        while len(ids) < TOKENS and (not ids or ids[-1] != eos):
            prefix = (*prompt, *ids)
            if prefix not in laws:
                laws[prefix] = law_after(model, prefix, temperature)
            ids = (*ids, int(generator.choice(V, p=laws[prefix])))
        answers.append(Answer(number % 2, ids))
    return answers


def test_places_are_those_of_the_definition(tiny: Any) -> None:
    """Every answer's coordinates, against one that sorts and adds; an ended answer keeps its uniforms."""
    model = tiny.model(0, vocab_size=V)
    answers = [Answer(number % 2, ids) for number, ids in enumerate(itertools.product(range(V), repeat=3))]
    answers += [Answer(0, (1,)), Answer(1, (4, 1))]
    uniforms = torch.rand(len(answers), TOKENS, generator=torch.Generator().manual_seed(1)).double()
    places = LiveLaws(loaded(tiny), PROMPTS, TOKENS).transform(answers, 0.7, uniforms)
    for answer, coins, found in zip(answers, uniforms.tolist(), places.tolist(), strict=True):
        expected = list(coins)
        for depth, token in enumerate(answer.token_ids):
            law = law_after(model, (*PROMPTS[answer.prompt], *answer.token_ids[:depth]), 0.7)
            order = np.argsort(-law, kind="stable").tolist()
            ahead = order[: order.index(token)]
            expected[depth] = law[ahead].sum() + coins[depth] * law[token]
        assert found == pytest.approx(expected, abs=1e-5)


def test_equal_tokens_do_not_overlap() -> None:
    law = torch.tensor([[0.25, 0.25, 0.5, 0.0]] * 3, dtype=torch.float64)
    places = place_in_law(law, torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.float64))
    assert places.tolist() == [0.5, 0.75, 0.0]


@pytest.mark.parametrize("eos", [None, 1])
def test_the_right_law_passes_and_a_near_one_does_not(tiny: Any, eos: int | None) -> None:
    answers = sampled(tiny.model(0, vocab_size=V), 4000, 0.9, eos=eos)
    uniforms = torch.rand(len(answers), TOKENS, generator=torch.Generator().manual_seed(2)).double()
    laws = LiveLaws(loaded(tiny), PROMPTS, TOKENS)
    right = uniformity_tests(laws.transform(answers, 0.9, uniforms))
    wrong = uniformity_tests(laws.transform(answers, 1.1, uniforms))
    assert [test.name for test in right] == ["token 1", "token 2", "token 3", "all tokens jointly"]
    assert verdict(right) > 0.01
    assert verdict(wrong) < SIGNIFICANCE


def test_only_the_joint_test_sees_dependence() -> None:
    """Each coordinate uniform, the second a copy of the first."""
    first = torch.rand(2000, generator=torch.Generator().manual_seed(3)).double()
    tests = uniformity_tests(torch.stack([first, first], dim=1))
    assert [test.p_value > 0.01 for test in tests] == [True, True, False]
    counts = torch.bincount((first * 20).long(), minlength=20).numpy()
    assert tests[0].statistic == pytest.approx(chisquare(counts).statistic)
    assert tests[0].p_value == pytest.approx(chisquare(counts).pvalue)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"answers": 79}, "--answers is 79; with 4 tokens each, at least 100"),
        ({"answers": 200, "tokens": 8}, "at least 1280"),
        ({"tokens": 9}, "--tokens is 9"),
        ({"temperature": 0.0}, "--temperature is 0"),
    ],
)
def test_settings_that_cannot_be_tested(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LiveSettings("http://localhost:1", **given)
    assert fewest_answers(2) == 100
