"""Number formats against float32, and engines with integer weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from resispec.engine.build import LoadedDraft
from resispec.engine.config import ConfigError
from resispec.engine.fidelity.command import run
from resispec.engine.fidelity.measure import FidelitySettings, compare, measure_fidelity
from resispec.engine.request import Request, SamplingParams

QUIET = Console(quiet=True)


def test_compare_against_a_law_worked_out_by_hand() -> None:
    expected = [torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()]
    found = [torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()]
    row = compare("int8", expected, found)
    kl = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert row.positions == 2
    assert row.mean_kl == pytest.approx(kl / 2)
    assert row.worst_kl == pytest.approx(0.99 * kl)
    assert row.mean_distance == pytest.approx(0.125)
    assert row.top1_agreement == 0.5  # of a tie the first counts


@pytest.fixture(scope="module")
def folder(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    letters = {letter: number for number, letter in enumerate("#abcdefghijklmnopqrstuvwxyz")}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="#"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="a").save_pretrained(path)
    tiny.model(0, intermediate_size=96, max_position_embeddings=2048).save_pretrained(path)
    return path


def test_formats(folder: Path) -> None:
    settings = FidelitySettings(str(folder), ("float32", "bfloat16", "int8", "int4"), 4, 6, 1, offline=True)
    same, bfloat16, int8, int4 = measure_fidelity(settings, QUIET)
    assert same.positions == 24
    assert same.mean_kl == pytest.approx(0, abs=1e-9)
    assert same.top1_agreement == 1.0
    assert 1e-7 < bfloat16.mean_kl < int4.mean_kl
    assert 1e-7 < int8.mean_kl < int4.mean_kl
    assert 0 < int8.mean_distance < int4.mean_distance < 1


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(FidelitySettings(str(folder), ("int8",), 1, 3, 1, offline=True), as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["format"] == "int8"
    run(FidelitySettings(str(folder), ("int8",), 1, 3, 1, offline=True), as_json=False)
    assert "same top token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"formats": ("int3",)}, ("--formats", "int3", "int4")),
        ({"formats": ()}, ("--formats", "int4")),
        ({"tokens": 0}, ("--tokens",)),
    ],
)
def test_bad_settings(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        FidelitySettings(**changes)
    assert all(part in caught.value.message for part in parts)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_speculation_keeps_a_quantized_targets_own_text(tiny: Any, quantization: str) -> None:
    """Plain decoding and verification read the same integers, so greedy text is the same, drafted or not."""
    requests = [
        Request(str(i), (5 + i, 9, 60), SamplingParams(temperature=0.0, max_tokens=24)) for i in range(4)
    ]
    plain = tiny.engine(tiny.model(0), quantization=quantization)
    drafted = tiny.engine(tiny.model(0), LoadedDraft(256, model=tiny.model(0)), quantization=quantization)
    assert plain.info.quantization == quantization
    assert plain.info.number_format == f"{quantization} weights, float32"
    expected = tiny.run(plain, requests).tokens
    ran = tiny.run(drafted, requests)
    assert ran.tokens == expected
    assert sum(len(part.accepted) for stats in ran.stats for part in stats.speculation) > 0
    assert expected != tiny.run(tiny.engine(tiny.model(0)), requests).tokens  # it is another model


def test_bad_quantization(tiny: Any) -> None:
    with pytest.raises(ConfigError, match="int3.*int8"):
        tiny.engine(tiny.model(0), quantization="int3")
