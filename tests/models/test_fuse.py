"""Surgery: what is replaced gives the same; what would not, stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
)

from resispec.models.causal import CausalModel, chunk_inputs
from resispec.models.fit import fit
from resispec.models.fuse.norm import FusedRMSNorm
from resispec.models.kv import KVMemory

CPU = torch.device("cpu")
LAYERS = 2
IDS = [3, 50, 99, 7, 7, 120, 64, 31]


def plain_logits(model: Any) -> Tensor:
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]  # type: ignore[no-any-return]


def fitted_logits(model: Any) -> Tensor:
    fitted = fit(model, 256)
    geometry, notes = fitted.geometry, fitted.notes
    assert notes == ()
    return CausalModel(model, KVMemory(geometry, 32, CPU), 256).forward(chunk_inputs(IDS, 0, CPU)).logits


def parts(model: Any, kind: str) -> int:
    return sum(type(module).__name__ == kind for module in model.modules())


@pytest.mark.parametrize(
    ("family", "norms", "attentions", "mlps", "layers"),
    [
        ("llama", 2 * LAYERS + 1, LAYERS, LAYERS, LAYERS),
        ("qwen2", 2 * LAYERS + 1, LAYERS, LAYERS, LAYERS),  # biases
        ("qwen3", 4 * LAYERS + 1, LAYERS, LAYERS, LAYERS),  # norms of heads
        ("mistral", 2 * LAYERS + 1, LAYERS, LAYERS, LAYERS),  # a window
        ("phi3", 2 * LAYERS + 1, LAYERS, 0, LAYERS),  # joined in its files
        ("gemma3_text", 6 * LAYERS + 1, LAYERS, LAYERS, LAYERS),  # one plus the weight, two rotations
        ("gpt2", 0, 0, 0, 0),  # nothing of a known kind
    ],
)
def test_fused_models_give_their_own_logits(
    tiny: Any, family: str, norms: int, attentions: int, mlps: int, layers: int
) -> None:
    model = tiny.model(0, family)
    expected = plain_logits(tiny.model(0, family))
    torch.testing.assert_close(fitted_logits(model), expected, rtol=1e-4, atol=1e-4)
    assert parts(model, "FusedRMSNorm") == norms
    assert parts(model, "FusedAttention") == attentions
    assert parts(model, "FusedMLP") == mlps
    assert parts(model, "FusedLayer") == layers


class _Scaled(LlamaAttention):
    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().forward(hidden_states, *args, **kwargs)
        return 2 * output, weights


class _Halved(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (super().forward(hidden_states, *args, **kwargs) + hidden_states) / 2


class _Shifted(LlamaMLP):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + 0.1


class _OddRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Any:
        return super().forward(hidden_states) * 1.5


@pytest.mark.parametrize(
    ("odd", "path", "kind"),
    [
        (_Scaled, "model.layers.1.self_attn", "attention"),
        (_Halved, "model.layers.1", "layer"),
        (_Shifted, "model.layers.1.mlp", "feed-forward"),
        (_OddRMSNorm, "model.layers.1.input_layernorm", "norm"),
    ],
)
def test_a_part_that_looks_familiar_but_is_not_stays(
    tiny: Any, odd: type[nn.Module], path: str, kind: str
) -> None:
    model, twin = tiny.model(0), tiny.model(0)
    for one in (model, twin):
        one.get_submodule(path).__class__ = odd
    fitted = fit(model, 256)
    geometry, notes = fitted.geometry, fitted.notes
    assert notes == (f"1 {kind} parts of the model run unfused and slower: fused, they gave other results.",)
    assert type(model.get_submodule(path)) is odd
    ours = CausalModel(model, KVMemory(geometry, 32, CPU), 256).forward(chunk_inputs(IDS, 0, CPU)).logits
    torch.testing.assert_close(ours, plain_logits(twin), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_norm(dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (scale * torch.randn(5, 3, 64, generator=generator)).to(dtype)
    weight = torch.randn(64, generator=generator)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    ours = FusedRMSNorm(weight, 1e-6)(x)
    assert ours.dtype == dtype
    precision = 1e-5 if dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(ours.double(), exact, rtol=precision, atol=1e-5)


def test_norm_of_zeros_is_zero() -> None:
    assert FusedRMSNorm(torch.ones(8), 1e-6)(torch.zeros(2, 8)).eq(0).all()
