"""Bad words never come up, and forbid nothing else, along every path."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, RequestError, SamplingParams
from resispec.engine.sampling.bad_words import bad_words, recent_tokens

CPU = torch.device("cpu")


def naive(output: list[int], words: tuple[tuple[int, ...], ...]) -> set[int]:
    """What may not come next."""
    return {word[-1] for word in words if len(word) == 1 or tuple(output[-(len(word) - 1) :]) == word[:-1]}


def test_masks_against_a_naive_reading() -> None:
    rng = random.Random(3)
    kinds = [
        SamplingParams(
            bad_words=tuple(
                dict.fromkeys(
                    tuple(rng.randrange(4) for _ in range(rng.randrange(1, 4)))
                    for _ in range(rng.randrange(7))
                )
            )
        )
        for _ in range(12)
    ]
    params = [rng.choice(kinds) for _ in range(300)]
    outputs = [[rng.randrange(4) for _ in range(rng.randrange(4))] for _ in params]
    path = torch.full((300, 5), -1)
    for row in path:
        for column in range(5):
            if rng.random() < 0.4:
                row[column] = rng.randrange(4)
    rules = bad_words(params, CPU)
    recent = recent_tokens(outputs, path, rules)
    logits = torch.zeros(300, 4)
    for rule in rules:
        rule.forbid_(logits, recent)
    for row, used in enumerate(params):
        drafted = [token for token in path[row].tolist() if token >= 0]
        forbidden = {token for token in range(4) if logits[row, token] == -torch.inf}
        assert forbidden == naive(outputs[row] + drafted, used.bad_words)


def greedy(words: tuple[tuple[int, ...], ...]) -> list[Request]:
    rng = random.Random(8)
    prompts = [tuple(rng.randrange(2, 128) for _ in range(rng.randrange(1, 30))) for _ in range(6)]
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, bad_words=words)
    return [Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)]


def test_greedy_text_is_the_plain_one(tiny: Any) -> None:
    free = tiny.run(tiny.engine(tiny.model(0)), greedy(())).tokens
    texts = list(free.values())
    # Of every answer one token, one pair and one triple that it would have had.
    words = tuple(tuple(text[place : place + n]) for text in texts for n, place in ((1, 9), (2, 3), (3, 20)))
    plain = tiny.run(tiny.engine(tiny.model(0)), greedy(words)).tokens
    assert all(plain[name] != free[name] for name in free)
    for text in plain.values():
        for place in range(len(text)):
            assert text[place] not in naive(text[:place], words)
    for nodes, depth, proposers in ((5, 2, ("draft",)), (30, 6, ("draft",)), (12, 3, ("draft", "ngram"))):
        draft = LoadedDraft(256, model=tiny.model(0))
        engine = tiny.engine(
            tiny.model(0), draft, max_tree_nodes=nodes, max_tree_depth=depth, proposers=proposers
        )
        assert tiny.run(engine, greedy(words)).tokens == plain


def test_the_prompt_is_no_part_of_a_word(tiny: Any) -> None:
    request = greedy(())[0]
    first = tiny.run(tiny.engine(tiny.model(0)), [request]).tokens["0"][0]
    word = (request.prompt_token_ids[-1], first)
    sampling = SamplingParams(temperature=0.0, max_tokens=1, bad_words=(word,))
    ran = tiny.run(tiny.engine(tiny.model(0)), [Request("0", request.prompt_token_ids, sampling)])
    assert ran.tokens["0"] == [first]


@pytest.mark.parametrize(
    "words", [((),), ((128,),), ((-1, 3),), tuple((token,) for token in range(128)), ((1,),) * 1025]
)
def test_what_makes_no_sense_is_refused(tiny: Any, words: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(RequestError) as refusal:
        tiny.engine(tiny.model(0)).add(Request("a", (5,), SamplingParams(bad_words=words)))
    assert refusal.value.param == "bad_words"
