"""Integer weights: products against the same integers multiplied out, and how far off the rounding is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resispec.models.fit import lay_out
from resispec.models.quantize import GROUP, Int4Linear, Int8Linear, quantize_linears


def layer(rows: int, columns: int, dtype: torch.dtype, *, bias: bool, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    linear = nn.Linear(columns, rows, bias=bias, dtype=dtype).requires_grad_(False)
    linear.weight *= torch.linspace(0.01, 3, rows, dtype=dtype)[:, None]  # rows of unlike sizes
    return linear


def int8_weight(linear: nn.Linear) -> Tensor:
    """Written out from the definition: the nearest multiple of the greatest weight / 127."""
    weight = linear.weight.double()
    scale = (weight.abs().amax(1, keepdim=True) / 127).to(linear.weight.dtype).double()
    return (weight / scale).round().clamp(-127, 127) * scale


def int4_weight(linear: nn.Linear) -> Tensor:
    """The nearest of 16 even steps from the least to the greatest weight of each group."""
    dtype = linear.weight.dtype
    weight = linear.weight.double().view(linear.out_features, -1, GROUP)
    least = weight.amin(2, keepdim=True)
    step = ((weight.amax(2, keepdim=True) - least) / 15).to(dtype).double()
    middle = (least + 8 * step).to(dtype).double()
    return (middle + ((weight - middle) / step).round().clamp(-8, 7) * step).view_as(linear.weight)


@pytest.mark.parametrize("tokens", [1, 5, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kind", "weight_of"), [(Int8Linear, int8_weight), (Int4Linear, int4_weight)])
def test_products(kind: Any, weight_of: Any, bias: bool, dtype: torch.dtype, tokens: int) -> None:
    linear = layer(48, 96, dtype, bias=bias)
    x = torch.randn(1, tokens, 96).to(dtype)
    exact = x.double() @ weight_of(linear).T + (linear.bias.double() if bias else 0)
    ours = kind(linear)(x)
    assert ours.shape == (1, tokens, 48)
    assert ours.dtype == dtype
    error = (ours.double() - exact).norm() / exact.norm()
    assert error < (1e-4 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("columns", [1, 8, 40, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_columns_that_fill_no_vector(columns: int, dtype: torch.dtype) -> None:
    linear = layer(5, columns, dtype, bias=False)
    x = torch.randn(4, columns).to(dtype)
    exact = x[:3].double() @ int8_weight(linear).T
    assert (Int8Linear(linear)(x[:3]).double() - exact).norm() < 2e-2 * exact.norm()


@pytest.mark.parametrize(("kind", "limit"), [(Int8Linear, 0.01), (Int4Linear, 0.1)])
def test_how_far_from_the_real_weights(kind: Any, limit: float) -> None:
    linear = layer(64, 256, torch.float32, bias=False)
    x = torch.randn(4, 256)
    error = (kind(linear)(x) - linear(x)).norm() / linear(x).norm()
    assert limit / 10 < error < limit


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_zeros_give_zeros(kind: Any, dtype: torch.dtype) -> None:
    linear = nn.Linear(64, 16, bias=False, dtype=dtype).requires_grad_(False)
    linear.weight.zero_()
    assert kind(linear)(torch.randn(3, 64).to(dtype)).eq(0).all()


def test_a_shape_that_int4_cannot_take() -> None:
    with pytest.raises(ValueError, match="17 x 64"):
        Int4Linear(layer(17, 64, torch.float32, bias=False))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_whole_model_but_for_its_output(tiny: Any, quantization: str) -> None:
    model = tiny.model(0, hidden_size=32, intermediate_size=64)
    output = model.get_output_embeddings()
    assert lay_out(model, quantization) == ()
    assert model.get_output_embeddings() is output
    assert [module for module in model.modules() if type(module) is nn.Linear] == [output]


def test_what_int4_cannot_take_is_said(tiny: Any) -> None:
    model = tiny.model(0, intermediate_size=80)  # the way down has 80 columns
    (note,) = quantize_linears(model, "int4", exact=model.get_output_embeddings())
    assert note.startswith("2 matrices keep their number format")
    kept = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert kept == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "lm_head"]
