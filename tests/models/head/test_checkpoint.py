"""A head on disk and the check that it belongs to its target."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from resispec.models.base import ModelError
from resispec.models.head.checkpoint import load_head, save_head
from resispec.models.head.config import HeadConfig
from resispec.models.head.fingerprint import check_head, fingerprint
from resispec.models.head.module import HeadModule


class Tokenizer:
    def __init__(self, tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}


TOKENIZER = Tokenizer("abcdefgh")


def make_target(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(sizes | changes)))


def make_config(target: LlamaForCausalLM) -> HeadConfig:
    return HeadConfig(16, 2, 1, 8, 24, 1e4, 1e-6, 64, 5, fingerprint(target, TOKENIZER, "tiny"))


def saved(folder: Path, target_layers: tuple[int, ...] = ()) -> HeadModule:
    config = dataclasses.replace(make_config(make_target()), target_layers=target_layers)
    module = HeadModule(config)
    save_head(folder, module, torch.tensor([0, 3, 4, 17, 39]))
    return module


@pytest.mark.parametrize("target_layers", [(), (3, 0)])
def test_round_trip(target_layers: tuple[int, ...], tmp_path: Path) -> None:
    module = saved(tmp_path / "deep" / "head", target_layers)
    loaded, vocab_ids = load_head(tmp_path / "deep" / "head", dtype=torch.float32)
    assert loaded.config == module.config
    assert not loaded.training
    assert vocab_ids.dtype == torch.int64
    assert vocab_ids.tolist() == [0, 3, 4, 17, 39]
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float()), name
    assert sorted(path.name for path in (tmp_path / "deep" / "head").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("ids", [[0, 3, 4, 17, 40], [0, 3, 3, 17, 39], [-1, 3, 4, 17, 39], [0, 3, 4, 17]])
def test_bad_vocab_ids_are_not_saved(ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="vocab"):
        save_head(tmp_path, HeadModule(make_config(make_target())), torch.tensor(ids))
    assert not list(tmp_path.iterdir())


def test_cut_off_weights_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot read the draft head"):
        load_head(tmp_path)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such"):
        load_head(tmp_path / "no-such")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_heads": True}, "num_heads"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_size": 32}, "does not fit"),
        ({"draft_vocab_size": 6}, "5 vocab_ids"),
        ({"draft_vocab_size": 41}, "draft_vocab_size"),
        ({"colour": "red"}, "colour"),
        ({"target_layers": [1, 1]}, "each once"),
        ({"target_layers": [-1]}, "counted from 0"),
        ({"target_layers": [1.5]}, "target_layers"),
        ({"target_layers": [True]}, "target_layers"),
        ({"target_layers": 3}, "target_layers"),
        ({"target_layers": [0]}, "does not fit"),
        ({"target": None}, "target"),
        ({"target": {"name": "x"}}, "missing"),
    ],
)
def test_config_that_is_wrong_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        load_head(tmp_path)


@pytest.mark.parametrize("sketch", [["a"], [None], "text", 1.0])
def test_sketch_that_is_no_list_of_numbers_is_refused(sketch: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["target"]["output_sketch"] = sketch
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="output_sketch"):
        load_head(tmp_path)


def test_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        load_head(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_its_own_target_is_accepted_in_any_dtype(dtype: torch.dtype) -> None:
    target = make_target()
    config = make_config(target)
    torch.nn.Module.to(target, dtype)
    check_head(config, target, TOKENIZER)


def test_a_head_from_before_there_were_target_layers_loads(tmp_path: Path) -> None:
    module = saved(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["target_layers"]
    path.write_text(json.dumps(values))
    loaded, _ = load_head(tmp_path)
    assert loaded.config == module.config


def test_the_config_survives_json() -> None:
    config = make_config(make_target())
    assert HeadConfig.from_json(config.to_json()) == config


def test_another_target_is_refused() -> None:
    target = make_target()
    config = make_config(target)
    for other, tokenizer, message in (
        (make_target(1), TOKENIZER, "other weights"),
        (make_target(vocab_size=41), TOKENIZER, "vocabulary is 40, this one's 41"),
        (make_target(hidden_size=32), TOKENIZER, "hidden size is 16, this one's 32"),
        (target, Tokenizer("abcdefhg"), "tokenizer"),
    ):
        with pytest.raises(ModelError, match=message):
            check_head(config, other, tokenizer)
    renamed = dataclasses.replace(config, target=dataclasses.replace(config.target, name="elsewhere"))
    check_head(renamed, target, TOKENIZER)  # a name is no mark


def test_a_model_without_output_matrix_is_refused() -> None:
    target = make_target()
    config = make_config(target)
    target.set_output_embeddings(torch.nn.Identity())
    with pytest.raises(ModelError, match="no output matrix"):
        check_head(config, target, TOKENIZER)
