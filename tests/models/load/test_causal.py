"""Loading: what comes out, and what is refused before it could be silently wrong."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from resispec.models.base import ModelError
from resispec.models.load import check_config, check_model, load_causal, read_facts
from resispec.models.prepare import prepare_gguf

from ..tiny_gguf import write_gguf

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESISPEC_CACHE", str(folder / "cache"))
        write_gguf(folder / "tiny.gguf")
        return prepare_gguf(folder / "tiny.gguf")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    return load_causal(folder, device=CPU, dtype=dtype, attn_implementation="eager")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ready_to_run(original: Path, dtype: torch.dtype) -> None:
    model, tokenizer = load(original, dtype)
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    assert not any(weight.requires_grad for weight in model.parameters())
    assert model.config._attn_implementation == "eager"
    assert tokenizer.encode("hel")


def test_touches_no_network(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connected"))
    load(original)


def test_says_nothing(original: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(original)
    assert capfd.readouterr() == ("", "")


def test_missing_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights are missing: model.layers.0.mlp.up_proj.weight"):
        load(folder)


def test_weights_of_another_size(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=24)
    with pytest.raises(ModelError, match=r"do not fit config.json: model.layers.0.mlp.down_proj.weight is"):
        load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_file(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError) as raised:
        load(folder)
    assert str(folder) in str(raised.value)
    assert str(raised.value).count(f"{folder}: ") <= 1


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -3), ("top_p", 7), ("repetition_penalty", 0), ("min_p", "NaN")]
)
def test_defaults_that_no_request_could_use(folder: Path, name: str, value: object) -> None:
    model, tokenizer = load(folder)
    edit(folder / "generation_config.json", **{name: value})
    with pytest.raises(ModelError, match=rf"generation_config.json: {name} is"):
        read_facts(folder, model, tokenizer)


def test_code_in_the_folder_is_not_run(folder: Path) -> None:
    edit(folder / "config.json", model_type="unheard_of", auto_map={"AutoConfig": "configuration.Other"})
    (folder / "configuration.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError):
        load(folder)


def test_facts(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[2, 0], temperature=0.6, top_k=None)
    model, tokenizer = load(folder)
    facts = read_facts(folder, model, tokenizer)
    assert facts.max_positions == 64
    assert facts.eos_token_ids == (0, 2)
    assert facts.generation_defaults == {"temperature": 0.6}


def test_facts_of_gpt2() -> None:
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_positions=40, n_embd=8, n_layer=1, n_head=2, vocab_size=10)
    )
    model.config.eos_token_id = model.generation_config.eos_token_id = None

    class Tokenizer:
        eos_token_id = 7

    facts = read_facts(Path("nowhere"), model, Tokenizer())
    assert (facts.max_positions, facts.eos_token_ids, facts.generation_defaults) == (40, (7,), {})


LLAMA: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}


@pytest.mark.parametrize("rope", ["default", "linear", "yarn", "llama3"])
def test_fixed_rotary_scalings_are_served(rope: str) -> None:
    scaling = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope == "llama3" else {}
    check_config(transformers.LlamaConfig(**LLAMA, max_position_embeddings=64, rope_parameters=scaling))


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rotary_scalings_that_see_the_batch_are_refused(rope: str) -> None:
    scaling: dict[str, Any] = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0}
    if rope == "longrope":
        scaling |= {
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 32,
        }
    with pytest.raises(ModelError, match=f"rotary scaling '{rope}'"):
        check_config(transformers.LlamaConfig(**LLAMA, max_position_embeddings=64, rope_parameters=scaling))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.T5Config(), "encoder-decoder"),
        (transformers.BertConfig(), "not causal"),
        (transformers.Gemma3TextConfig(use_bidirectional_attention=True), "not causal"),
        (transformers.Gemma2Config(), "caps its attention scores"),
        (transformers.Gemma3Config(), "more than text"),
        (transformers.CLIPTextConfig(), "not a causal language model"),
        (transformers.Qwen3NextConfig(), "linear_attention"),
        (transformers.Llama4TextConfig(), "chunked_attention"),
        (transformers.Gemma3nTextConfig(), "share keys and values"),
        (transformers.LlamaConfig(**LLAMA | {"quantization_config": {"quant_method": "awq"}}), "quantised"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, transformers.PreTrainedConfig) else "",
)
def test_refused_by_configuration(config: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_config(config)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: transformers.MambaForCausalLM(
                transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=8, state_size=2)
            ),
            "recurrent state",
        ),
        (
            lambda: transformers.BloomForCausalLM(
                transformers.BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=8)
            ),
            "attention interface",
        ),
        (
            lambda: transformers.GptOssForCausalLM(
                transformers.GptOssConfig(**LLAMA, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
            ),
            "attention sinks",
        ),
    ],
    ids=["mamba", "bloom", "gpt-oss"],
)
def test_refused_by_its_layers(model: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_model(model())


@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(**LLAMA),
        transformers.Qwen2Config(**LLAMA),
        transformers.Qwen3Config(**LLAMA, head_dim=8),
        transformers.MistralConfig(**LLAMA, sliding_window=8),
        transformers.Phi3Config(**LLAMA, pad_token_id=0),
        transformers.Gemma3TextConfig(**LLAMA, head_dim=8),
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32),
        transformers.OPTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, vocab_size=32
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_families_that_are_served(config: Any) -> None:
    check_config(config)
    check_model(transformers.AutoModelForCausalLM.from_config(config))
