"""Tiny random models and engines around them, for every room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.config import EngineConfig
from resispec.engine.engine import Engine
from resispec.engine.native import kernels_for
from resispec.engine.outputs import RequestOutput, StepStats
from resispec.engine.request import Request, SpeculationMode
from resispec.models.device.cpu import CpuDevice

VOCABULARY = 128
EOS = 1

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 24},
    "phi3": {"sliding_window": None, "bos_token_id": 0, "eos_token_id": EOS},
    "gemma3_text": {"head_dim": 8, "sliding_window": 24},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "bos_token_id": 0,
        "eos_token_id": EOS,
    },
}


def tiny_model(seed: int, family: str = "llama", **overrides: Any) -> Any:
    """A seeded random model of a family, evaluation mode, float32."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
    }
    if family == "gpt2":
        sizes = {"vocab_size": VOCABULARY}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family, **{**sizes, "initializer_range": 0.3, **FAMILIES[family], **overrides}
    )
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def tiny_tokenizer(size: int = VOCABULARY) -> Tokenizer:
    """Token ``i`` reads ``ti``."""
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def tiny_engine(
    target: Any,
    draft: LoadedDraft | None = None,
    num_ids: int = VOCABULARY,
    context: int = 256,
    compiled_folder: Path | None = None,
    **config: Any,
) -> Engine:
    loaded = LoadedTarget(target, tiny_tokenizer(), "tiny", context, num_ids, (EOS,), {})
    # Large trees in every step, so that every test has depth and breadth to go wrong in.
    config = {"speculation": SpeculationMode.FIXED, "max_tree_nodes": 12, "max_tree_depth": 3, **config}
    whole = EngineConfig("tiny", draft="tiny" if draft else None, **config)
    return assemble(whole, loaded, draft, compiled_folder=compiled_folder)


@dataclass
class Ran:
    """Everything an engine gave for some requests."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    last: dict[str, RequestOutput] = field(default_factory=dict)
    stats: list[StepStats] = field(default_factory=list)


def run_engine(engine: Engine, requests: Sequence[Request], limit: int = 5000) -> Ran:
    """Run requests to their ends, all added at once, and check that nothing leaked."""
    ran = Ran()
    for request in requests:
        engine.add(request)
        ran.tokens[request.request_id], ran.text[request.request_id] = [], ""
    for _ in range(limit):
        if not engine.has_work:
            break
        result = engine.step()
        ran.stats.append(result.stats)
        for output in result.outputs:
            ran.tokens[output.request_id] += output.token_ids
            ran.text[output.request_id] += output.text
            if output.finish_reason is not None:
                assert output.request_id not in ran.last, "finished twice"
                ran.last[output.request_id] = output
    assert not engine.has_work, "the engine does not come to an end"
    engine.check_integrity()
    assert engine.kv_usage == 0.0
    return ran


@dataclass(frozen=True)
class Tiny:
    """What tests build tiny things with; a fixture, because test modules cannot import each other."""

    model: Callable[..., Any] = tiny_model
    engine: Callable[..., Engine] = tiny_engine
    tokenizer: Callable[..., Tokenizer] = tiny_tokenizer
    run: Callable[..., Ran] = run_engine
    families: tuple[str, ...] = tuple(FAMILIES)
    vocabulary: int = VOCABULARY
    eos: int = EOS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Within: so many threads of torch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["built", "torch"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a CPU verification runs on kernels of our own, or on torch's operations where there are none."""
    way = str(request.param)
    if way == "torch":
        monkeypatch.setattr(CpuDevice, "runs_native", False)
    elif kernels_for(torch.device("cpu")) is None:
        pytest.skip("no kernels were built")
    return way
