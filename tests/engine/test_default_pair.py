"""The pair that is served by default: greedy text in float32 does not depend on speculation or company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from resispec.engine.config import EngineConfig
from resispec.engine.engine import Engine
from resispec.engine.load import build_engine
from resispec.engine.request import Request, SamplingParams, SpeculationMode, SpeculationParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUESTIONS = (
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Write a Python function that reverses a string.",
    "Repeat this list three times: apple, pear, plum.",
    "What is the capital of Italy, and how many people live there?",
    "Translate into French: good morning, my friend.",
    "Name five animals that live in Africa.",
    "Explain photosynthesis to a child.",
)


def engine(draft: str | None, **config: Any) -> Engine:
    settings = {"dtype": "float32", "device": "cpu", "max_model_len": 1024, "num_threads": 1, **config}
    return build_engine(EngineConfig("default", draft=draft, **settings))


def requests(tokenizer: Any, count: int = 8) -> list[Request]:
    sampling = SamplingParams(temperature=0.0, max_tokens=40)
    return [
        Request(
            str(index),
            tuple(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
                )
            ),
            sampling,
        )
        for index, question in enumerate(QUESTIONS[:count])
    ]


def test_greedy_text_is_the_plain_one(tiny: Any) -> None:
    plain = engine(None)
    tokenizer = AutoTokenizer.from_pretrained(plain.info.target_path)
    wanted = requests(tokenizer)
    expected = tiny.run(plain, wanted).tokens
    del plain
    # With trees whatever they cost: on a busy machine they may not pay.
    speculative = engine("default", speculation=SpeculationMode.FIXED)
    together = tiny.run(speculative, wanted)
    assert together.tokens == expected
    for request in wanted[:3]:
        alone = tiny.run(speculative, [request])
        assert alone.tokens[request.request_id] == expected[request.request_id]
    # And with as many as pay on this machine at this moment: they may differ, the text may not.
    auto = SpeculationParams(mode=SpeculationMode.AUTO)
    assert tiny.run(speculative, [replace(one, speculation=auto) for one in wanted]).tokens == expected
    kept = sum(output.metrics.speculation.num_accepted_draft_tokens for output in together.last.values())
    steps = sum(output.metrics.speculation.num_spec_steps for output in together.last.values())
    assert kept > 0.3 * steps, "the shipped draft is not what it was"


def test_seeded_text_does_not_depend_on_company(tiny: Any) -> None:
    speculative = engine("default")
    tokenizer = AutoTokenizer.from_pretrained(speculative.info.target_path)
    wanted = [
        Request(r.request_id, r.prompt_token_ids, SamplingParams(temperature=0.8, max_tokens=24, seed=7))
        for r in requests(tokenizer, 4)
    ]
    together = tiny.run(speculative, wanted)
    for request in wanted:
        alone = tiny.run(speculative, [request])
        assert alone.tokens[request.request_id] == together.tokens[request.request_id]
