"""Sampled text follows the exact joint law under every parameter that looks at the text before it.

The law is enumerated with plain loops over the whole answer so far; the engine applies the same rules at
the nodes of a tree, along each node's own path. False-alarm rate of a test: 1e-6, with fixed seeds.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams

from .truncation import truncated

V = 5
LENGTH = 4
PROMPT = (3, 1, 4)
FALSE_ALARM = 1e-6

CASES: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 0.9, "frequency_penalty": 0.7},
    "bonuses": {"repetition_penalty": 0.6, "frequency_penalty": -1.1},
    "bias": {"logit_bias": ((0, 1.5), (3, -2.0))},
    "stops come late": {"min_tokens": 2, "stop_token_ids": (2,)},
    "bad words": {"bad_words": ((4,), (0, 3), (1, 1, 2), (3, 3))},
    "all": {
        "temperature": 1.3,
        "top_k": 4,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "logit_bias": ((2, 0.8),),
        "bad_words": ((0, 0), (2, 1)),
        "logprobs": 2,
    },
}


def process(logits: np.ndarray, sampling: SamplingParams, output: tuple[int, ...]) -> np.ndarray:
    """One position's law after ``output``, written for reading. logits: [V] float64."""
    logits = logits.copy()
    for token in {*PROMPT, *output}:
        factor = sampling.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(output):
        logits[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if len(output) < sampling.min_tokens:
        logits[[1, *sampling.stop_token_ids]] = -np.inf  # 1: EOS
    for word in sampling.bad_words:
        if len(word) == 1 or output[-(len(word) - 1) :] == word[:-1]:
            logits[word[-1]] = -np.inf
    p = np.exp((logits - logits.max()) / sampling.temperature)
    p /= p.sum()
    return truncated(p, sampling)


def exact_joint(model: Any, sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of every answer of LENGTH tokens, or fewer if a stop id ends it."""
    model.set_attn_implementation("eager")
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(LENGTH):
        prefixes = list(itertools.product(range(V), repeat=depth))
        batch = torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])
        with torch.inference_mode():
            logits = model(input_ids=batch, use_cache=False).logits[:, -1].double().numpy()
        rows = dict(zip(prefixes, logits, strict=True))
        grown: dict[tuple[int, ...], float] = {}
        for prefix, mass in joint.items():
            if len(prefix) < depth or (prefix and prefix[-1] in sampling.stop_token_ids):
                grown[prefix] = mass
                continue
            for token, p in enumerate(process(rows[prefix], sampling, prefix)):
                grown[*prefix, token] = mass * p
        joint = grown
    return joint


def p_value(counts: dict[tuple[int, ...], int], joint: dict[tuple[int, ...], float]) -> float:
    """Chi-square goodness of fit; answers that are expected fewer than 5 times are pooled."""
    total = sum(counts.values())
    assert all(joint.get(answer, 0.0) > 0 for answer in counts), "an impossible answer was given"
    pairs = [(counts.get(answer, 0), p * total) for answer, p in joint.items()]
    common = [pair for pair in pairs if pair[1] >= 5]
    rare = [pair for pair in pairs if pair[1] < 5]
    pooled = tuple(map(sum, zip(*rare, strict=True))) if rare else (0, 0.0)
    cells = [*common, pooled] if pooled[1] > 0 else common
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def sample(tiny: Any, engine: Any, case: dict[str, Any], count: int) -> dict[tuple[int, ...], int]:
    counts: dict[tuple[int, ...], int] = {}
    for start in range(0, count, 500):
        requests = [
            Request(str(seed), PROMPT, SamplingParams(max_tokens=LENGTH, ignore_eos=True, seed=seed, **case))
            for seed in range(start, min(start + 500, count))
        ]
        for tokens in tiny.run(engine, requests).tokens.values():
            counts[tuple(tokens)] = counts.get(tuple(tokens), 0) + 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "verifier"),
    [
        *((case, "resispec") for case in CASES),
        *itertools.product(("bad words", "all"), ("resispec-tree", "specinfer", "block")),
    ],
)
def test_joint_law(tiny: Any, case: str, verifier: str) -> None:
    target = tiny.model(0, vocab_size=V)
    draft = LoadedDraft(256, model=tiny.model(7, vocab_size=V, num_hidden_layers=1))
    nodes = 3 if verifier == "block" else 8
    engine = tiny.engine(target, draft, num_ids=V, verifier=verifier, max_tree_nodes=nodes, max_num_seqs=32)
    counts = sample(tiny, engine, CASES[case], 1500)
    joint = exact_joint(tiny.model(0, vocab_size=V), SamplingParams(**CASES[case]))
    assert p_value(counts, joint) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_laws_differ_enough_to_be_told_apart(tiny: Any, case: str) -> None:
    """Answers given without the parameters are not taken for answers given with them."""
    engine = tiny.engine(tiny.model(0, vocab_size=V), num_ids=V, max_num_seqs=32)
    counts = sample(tiny, engine, {"stop_token_ids": CASES[case].get("stop_token_ids", ())}, 1500)
    joint = exact_joint(tiny.model(0, vocab_size=V), SamplingParams(**CASES[case]))
    possible = {answer: count for answer, count in counts.items() if joint.get(answer, 0.0) > 0}
    assert len(possible) < len(counts) or p_value(counts, joint) < FALSE_ALARM
