"""The target writing its own text."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import LlamaForCausalLM

from resispec.models.base import ModelError
from resispec.models.distill import generate
from resispec.models.distill.generate import write_corpus
from resispec.models.distill.prompts import builtin_prompts, prompts_from_file


class Letters:
    chat_template: str | None = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}


class ChatLetters(Letters):
    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "z" + messages[0]["content"] + "y"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_BATCH", 3)


@pytest.fixture
def writer(target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    monkeypatch.setattr(target.generation_config, "eos_token_id", [5, 6])
    return target


def write(
    target: LlamaForCausalLM, path: Path, tokens: int, tokenizer: Letters | None = None
) -> list[dict[str, Any]]:
    prompts = (chr(ord("a") + number % 20) * (1 + number % 4) for number in itertools.count())
    write_corpus(
        target,
        tokenizer or Letters(),
        prompts,
        tokens,
        path,
        seed=3,
        max_new_tokens=12,
        console=Console(quiet=True),
    )
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_enough_is_written_and_every_answer_ends_once(writer: LlamaForCausalLM, tmp_path: Path) -> None:
    lines = write(writer, tmp_path / "a.jsonl", 200)
    assert 200 <= sum(len(line["output"]) for line in lines) < 200 + 3 * 12
    assert {line["temperature"] for line in lines} == {1.0, 0.7, 0.0}
    for number, line in enumerate(lines):
        assert line["prompt"] == [number % 20] * (1 + number % 4)
        ends = [place for place, token_id in enumerate(line["output"]) if token_id in (5, 6)]
        assert ends in ([], [len(line["output"]) - 1])
        assert ends or len(line["output"]) == 12


def test_a_greedy_answer_is_the_targets_own_whatever_the_padding(
    writer: LlamaForCausalLM, tmp_path: Path
) -> None:
    for line in write(writer, tmp_path / "a.jsonl", 300):
        if line["temperature"] == 0.0:
            ids = line["prompt"] + line["output"]
            with torch.no_grad():
                best = writer(torch.tensor([ids])).logits[0].argmax(-1).tolist()
            assert best[len(line["prompt"]) - 1 : -1] == line["output"]


def test_an_interrupted_file_ends_as_an_unbroken_one(writer: LlamaForCausalLM, tmp_path: Path) -> None:
    whole = write(writer, tmp_path / "whole.jsonl", 250)
    path = tmp_path / "broken.jsonl"
    write(writer, path, 100)
    with path.open("a") as file:
        file.write('{"prompt": [1, 2], "outp')
    assert write(writer, path, 250) == whole


def test_the_seed_matters_and_the_callers_stream_does_not(writer: LlamaForCausalLM, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = write(writer, tmp_path / "a.jsonl", 60)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert after == torch.rand(1)
    assert write(writer, tmp_path / "b.jsonl", 60) == first


def test_prompts_go_through_the_chat_template(writer: LlamaForCausalLM, tmp_path: Path) -> None:
    lines = write(writer, tmp_path / "a.jsonl", 10, ChatLetters())
    assert lines[1]["prompt"] == [25, 1, 1, 24]


def test_builtin_prompts_vary_and_repeat_by_seed() -> None:
    drawn = list(itertools.islice(builtin_prompts(0), 300))
    assert len(set(drawn)) > 250
    assert not any("{" in prompt for prompt in drawn)
    assert drawn == list(itertools.islice(builtin_prompts(0), 300))
    assert drawn != list(itertools.islice(builtin_prompts(1), 300))


def test_prompts_from_a_file_come_round_by_round(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\n two \nthree\n")
    drawn = list(itertools.islice(prompts_from_file(tmp_path / "p.txt", 0), 9))
    for start in (0, 3, 6):
        assert sorted(drawn[start : start + 3]) == ["one", "three", "two"]


@pytest.mark.parametrize("content", [None, "", "\n \n"])
def test_a_file_without_prompts_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "p.txt").write_text(content)
    with pytest.raises(ModelError, match=r"p\.txt"):
        prompts_from_file(tmp_path / "p.txt", 0)
