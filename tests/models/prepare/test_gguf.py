"""GGUF files: what comes out of a good one, and what is said of a bad one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file
from transformers import AutoTokenizer

from resispec.models.base import ModelError
from resispec.models.prepare import convert, prepare_gguf
from resispec.models.prepare import gguf as gguf_module

from ..tiny_gguf import write_gguf


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def test_weights_survive(tiny: Path) -> None:
    weights = load_file(prepare_gguf(tiny) / "model.safetensors")
    stored = {tensor.name: torch.tensor(tensor.data) for tensor in GGUFReader(tiny).tensors}
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        assert weights[ours].dtype == torch.float32  # the file is float32, so nothing is rounded
        assert torch.equal(weights[ours], stored[theirs])


def test_a_file_of_the_same_name_in_the_working_directory_is_not_taken(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_gguf(elsewhere / tiny.name, seed=1)
    monkeypatch.chdir(elsewhere)
    weights = load_file(prepare_gguf(tiny) / "model.safetensors")
    stored = {tensor.name: torch.tensor(tensor.data) for tensor in GGUFReader(tiny).tensors}
    assert torch.equal(weights["model.norm.weight"], stored["output_norm.weight"])


def test_configuration_is_of_a_plain_model(tiny: Path) -> None:
    config = json.loads((prepare_gguf(tiny) / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["max_position_embeddings"], config["eos_token_id"]) == (64, 2)


def test_tokenizer_splits_text_as_the_file_says(tiny: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepare_gguf(tiny))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\n1 hel"))
    assert tokens == ["ĊĊ", "1", "Ġ", "hel"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("<|im_start|>1")) == ["<|im_start|>", "1"]
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False).endswith(
        "<|im_end|>"
    )
    # Under GPT-2's rule the last white space sticks to the digit.
    other = tmp_path / "other.gguf"
    write_gguf(other, rule="gpt-2")
    tokenizer = AutoTokenizer.from_pretrained(prepare_gguf(other))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\n1")) == ["Ċ", "Ċ", "1"]


def test_sentencepiece_begins_with_bos(tmp_path: Path) -> None:
    path = tmp_path / "spm.gguf"
    write_gguf(path, kind="llama")
    tokenizer = AutoTokenizer.from_pretrained(prepare_gguf(path))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("hehe\n")) == ["<s>", "▁he", "he", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode("he é"), skip_special_tokens=True) == "he é"


def test_converted_once_per_content(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare_gguf(tiny)
    monkeypatch.setattr(gguf_module, "convert", lambda *_: pytest.fail("converted again"))
    copy = tmp_path / "elsewhere" / "tiny.gguf"
    copy.parent.mkdir()
    shutil.copy(tiny, copy)
    assert prepare_gguf(tiny) == prepare_gguf(copy) == first


def test_changed_content_is_converted_anew(tiny: Path) -> None:
    first = prepare_gguf(tiny)
    write_gguf(tiny, seed=1)
    assert prepare_gguf(tiny) != first


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"skip": "blk.1.ffn_up.weight"}, "lacks weights: model.layers.1.mlp.up_proj.weight"),
        ({"broken": True}, "not numbers"),
        ({"rule": "unheard-of"}, "'unheard-of', is not known"),
        ({"rule": None}, "is not known"),
    ],
)
def test_refused(tmp_path: Path, cache: Path, options: dict[str, Any], reason: str) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, **options)
    with pytest.raises(ModelError, match=reason) as raised:
        prepare_gguf(path)
    assert str(path) in str(raised.value)
    assert entries(cache / "models") == set()


@pytest.mark.parametrize("kept", [0, 20, 2000, 50_000, -10])
def test_cut_short(tiny: Path, cache: Path, kept: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:kept])
    with pytest.raises(ModelError, match="tiny.gguf"):
        prepare_gguf(tiny)
    assert not (cache / "models").exists() or entries(cache / "models") == set()


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none.gguf cannot be read: No such file"):
        prepare_gguf(tmp_path / "none.gguf")


def test_no_room(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ModelError, match=r"not enough space .*RESISPEC_CACHE") as raised:
        prepare_gguf(tiny)
    assert str(cache) in str(raised.value)
    assert entries(cache / "models") == set()


def test_disk_full_while_writing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(convert, "_save", fail)
    with pytest.raises(ModelError, match=r"no space left .*RESISPEC_CACHE"):
        prepare_gguf(tiny)


def test_cache_that_cannot_be_a_folder(tiny: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(ModelError, match="RESISPEC_CACHE"):
        prepare_gguf(tiny)
