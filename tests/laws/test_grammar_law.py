"""Structured answers have the target's law, each token's restricted to what some answer goes on with.

Thousands of short answers from a tiny pair against the exact law of whole answers, computed from
transformers' own forward and a list of all words. False-alarm rate of a test: 1e-6; seeds are fixed.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.config import EngineConfig
from resispec.engine.request import (
    FormHelp,
    Request,
    SamplingParams,
    SpeculationMode,
    SpeculationParams,
    StructuredSpec,
)

SPELLED = ("a", "b", "c", "ab")
EOS = 4
PROMPT = (3, 1, 2)
ALL = frozenset(FormHelp)
WORDS = [
    "".join(letters)
    for length in (1, 2, 3)
    for letters in itertools.product("abc", repeat=length)
    if "cc" not in "".join(letters)
]
# With stretches that leave no choice, for which the grammar runs ahead. There is one way to spell each.
STRETCHES = [
    first + "ccbc" + middle + "cbcc" + last
    for first, middle, last in itertools.product(["a", "b", "ca"], ["", "a", "bb"], ["", "c", "bc"])
]


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(SPELLED)}, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<eos>", special=True)])
    return made


def exact_law(model: Any, words: list[str]) -> dict[tuple[int, ...], float]:
    """The probability of every answer; one that can only end is complete without its end token."""
    model.set_attn_implementation("eager")
    law: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while frontier:
        path, mass = frontier.pop()
        text = "".join(SPELLED[token] for token in path)
        allowed = [t for t, s in enumerate(SPELLED) if any(word.startswith(text + s) for word in words)]
        if not allowed:
            law[path] = mass
            continue
        allowed += [EOS] if text in words else []
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*PROMPT, *path]]), use_cache=False).logits[0, -1]
        shares = torch.softmax(logits[allowed].double(), 0).tolist()
        for token, share in zip(allowed, shares, strict=True):
            if token == EOS:
                law[(*path, EOS)] = mass * share
            else:
                frontier.append(((*path, token), mass * share))
    return law


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "verifier", "nodes", "form"),
    [
        (WORDS, "resispec", 3, ALL),
        (WORDS, "resispec", 9, ALL),
        (WORDS, "resispec-tree", 9, ALL),
        (WORDS, "without-replacement", 9, ALL),
        (STRETCHES, "resispec", 9, ALL),
        (STRETCHES, "resispec-tree", 3, ALL),
        (STRETCHES, "resispec", 9, frozenset({FormHelp.FORCED})),
        (STRETCHES, "resispec", 9, frozenset({FormHelp.GRAMMAR})),
        (STRETCHES, "resispec", 9, frozenset()),
    ],
    ids=lambda value: "-" if isinstance(value, list | frozenset) else str(value),
)
def test_law_of_answers(
    tiny: Any, words: list[str], verifier: str, nodes: int, form: frozenset[FormHelp]
) -> None:
    target = LoadedTarget(tiny.model(0, vocab_size=5), tokenizer(), "tiny", 256, 5, (EOS,), {})
    draft = LoadedDraft(256, model=tiny.model(7, vocab_size=5, num_hidden_layers=1))
    config = EngineConfig(
        "tiny",
        draft="tiny",
        speculation=SpeculationMode.FIXED,
        max_tree_nodes=nodes,
        max_tree_depth=3,
        max_num_seqs=32,
    )
    engine = assemble(config, target, draft)
    spec = StructuredSpec("choice", json.dumps(words))
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, 4000, 500):
        speculation = SpeculationParams(verifier=verifier, form=form)
        requests = [
            Request(str(i), PROMPT, SamplingParams(structured=spec, seed=i), speculation)
            for i in range(start, start + 500)
        ]
        ran = tiny.run(engine, requests)
        assert {last.finish_reason for last in ran.last.values()} == {"stop"}
        counts.update(tuple(tokens) for tokens in ran.tokens.values())
    law = exact_law(tiny.model(0, vocab_size=5), words)
    assert abs(sum(law.values()) - 1) < 1e-9
    assert counts.keys() <= law.keys()
    total = counts.total()
    common = [answer for answer, share in law.items() if share * total >= 5]
    observed = [counts[answer] for answer in common]
    expected = [law[answer] * total for answer in common]
    observed.append(total - sum(observed))
    expected.append(total - sum(expected))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 0)
    assert chi2.sf(statistic, len(common)) > 1e-6
