"""Products and layers of our own, against the same in float32 and part by part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs
from resispec.models.causal import CausalModel, chunk_inputs
from resispec.models.fit import fit, lay_out
from resispec.models.fuse.layer import FusedLayer
from resispec.models.fuse.native import NativeLayers, Watch, can_go_native, go_native
from resispec.models.head.tap import LayerInputs
from resispec.models.kv import ROWS, KVMemory
from resispec.models.layout import lay_out_linears
from resispec.models.native.products import GROUP, native_products
from resispec.models.pack import NativeLinear, pack_linears
from resispec.models.quantize import Int8Linear

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(native_products() is None, reason="no kernels for this processor were built")


def linear(size: int, outputs: int, *, bias: bool) -> nn.Linear:
    torch.manual_seed(size + outputs)
    return nn.Linear(size, outputs, bias=bias).bfloat16()


def products(plain: nn.Linear, *, coded: bool = False) -> NativeLinear:
    found = native_products()
    assert found is not None
    return NativeLinear(plain, found, coded=coded)


def in_8_bits(x: Tensor, plain: nn.Linear) -> Tensor:
    """Written out from the definition: each output's weights are multiples of a 127th of the greatest, and so
    is each group of a row. In float32 until they are whole, as many lie just half-way.
    """
    weight, groups = plain.weight.float(), x.float().unflatten(-1, (-1, GROUP))
    step = (weight.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-38)
    weight = (weight / step).round().double() * step.double()
    most = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    shrink = torch.full_like(most, 127.0) / most  # "127 / most" would round twice
    rows = ((groups * shrink).round().double() * (most / 127).double()).flatten(-2)
    bias: Tensor | None = plain.bias
    return nn.functional.linear(rows, weight, None if bias is None else bias.double())


@pytest.mark.parametrize("outputs", [2047, 2048, 2049, 4130])
def test_matrices_that_are_laid_out_in_parts(outputs: int) -> None:
    plain, found = linear(64, outputs, bias=False), native_products()
    assert found is not None
    panels = found.panels(plain.weight)  # [panels, K / 2, 32, 2]
    rows = panels.transpose(1, 2).reshape(-1, 64)
    assert torch.equal(rows[:outputs], plain.weight)
    assert not rows[outputs:].any()
    assert not panels.requires_grad
    codes, scales = found.codes(plain.weight)  # [panels, K / 4, 32, 4], [32 panels]
    weight = (codes.transpose(1, 2).reshape(-1, 64).float() - 128) * scales[:, None]
    assert torch.equal(scales[:outputs], plain.weight.float().abs().amax(1) / 127)
    assert ((weight[:outputs] - plain.weight.float()).abs() <= 0.51 * scales[:outputs, None]).all()
    assert not weight[outputs:].any()


@pytest.mark.parametrize("rows", [1, 2, 7, 12, 13, 25, 40])
@pytest.mark.parametrize(("size", "outputs"), [(2, 1), (64, 32), (90, 33), (576, 95), (1536, 160)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product(rows: int, size: int, outputs: int, bias: bool) -> None:
    plain = linear(size, outputs, bias=bias)
    x = torch.randn(rows, size).bfloat16()
    expected = nn.functional.linear(x.double(), plain.weight.double(), plain.bias.double() if bias else None)
    ours = products(plain)(x)
    assert ours.dtype is torch.bfloat16
    torch.testing.assert_close(ours.double(), expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("rows", range(1, 41))
@pytest.mark.parametrize(("size", "outputs", "bias"), [(64, 1, True), (192, 33, False), (576, 95, True)])
def test_a_product_in_8_bits(rows: int, size: int, outputs: int, bias: bool) -> None:
    plain = linear(size, outputs, bias=bias)
    x = (torch.randn(rows, size) * torch.logspace(-6, 6, rows)[:, None]).bfloat16()  # rows of unlike sizes
    expected = in_8_bits(x, plain)
    ours = products(plain, coded=True)(x)
    assert ours.dtype is torch.bfloat16
    sums = 1e-6 * x.double().norm(dim=1, keepdim=True)  # what is left where they cancel out
    assert ((ours.double() - expected).abs() <= 2**-8 * expected.abs() + sums).all()


def test_a_long_row_in_8_bits() -> None:
    plain, x = linear(4096, 40, bias=False), torch.randn(3, 4096).bfloat16()
    ours, expected = products(plain, coded=True)(x).double(), in_8_bits(x, plain)
    assert (ours - expected).norm() < 3e-3 * expected.norm()
    exact = nn.functional.linear(x.double(), plain.weight.double())
    assert (
        3e-3 < (ours - exact).norm() / exact.norm() < 2e-2
    )  # the rounding is there, and as small as 8 bits are


def test_zeros_in_8_bits() -> None:
    """Of rows, of some of their groups, and of outputs; the least numbers are zeros, too."""
    plain = linear(128, 34, bias=True)
    plain.weight.data[5] = 0
    x = torch.randn(4, 128).bfloat16()
    x[0], x[1, :GROUP], x[2, GROUP:] = 0, 0, 1e-38
    ours = products(plain, coded=True)(x)
    assert torch.equal(ours[0], plain.bias)
    assert torch.equal(ours[:, 5], plain.bias[5].expand(4))
    expected = in_8_bits(x, plain)
    assert (ours.double() - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("stranger", [float("nan"), float("inf"), -float("inf")])
def test_no_numbers_in_8_bits(stranger: float) -> None:
    """Are none in all outputs of their rows, and change nobody else's."""
    packed, x = products(linear(576, 40, bias=True), coded=True), torch.randn(3, 576).bfloat16()
    before = packed(x)
    x[1, 70] = stranger
    after = packed(x)
    assert after[1].isnan().all()
    assert torch.equal(after[::2], before[::2])


@pytest.mark.parametrize("coded", [False, True])
def test_shapes_and_dtypes(coded: bool) -> None:
    """As `nn.Linear` takes them: more axes, views, other number formats."""
    plain = linear(64, 48, bias=True)
    packed, x = products(plain, coded=coded), torch.randn(2, 3, 128)[..., ::2]
    expected = plain(x.bfloat16())
    assert packed(x).shape == expected.shape
    assert (packed(x) - expected).norm() < (2e-2 if coded else 3e-3) * expected.norm()


@pytest.mark.parametrize("coded", [False, True])
def test_the_same_bits_in_any_company(coded: bool) -> None:
    packed, x = products(linear(576, 200, bias=True), coded=coded), torch.randn(61, 576).bfloat16()
    together = packed(x)
    for first, last in ((0, 1), (3, 5), (7, 20), (20, 61)):
        assert torch.equal(packed(x[first:last]), together[first:last])


def test_what_is_packed() -> None:
    model = nn.Sequential(linear(64, 32, bias=False), linear(63, 32, bias=False), nn.Linear(64, 32))
    pack_linears(model)
    assert [type(part) is NativeLinear for part in model] == [True, False, False]
    other = nn.Sequential(linear(64, 32, bias=False))
    pack_linears(other, native=False)
    assert type(other[0]) is not NativeLinear


@pytest.mark.parametrize(
    ("size", "dtype", "kind"),
    [
        (64, torch.bfloat16, NativeLinear),
        (80, torch.bfloat16, Int8Linear),
        (64, torch.float32, Int8Linear),
        (64, torch.float16, Int8Linear),
    ],
)
def test_what_is_packed_in_8_bits(size: int, dtype: torch.dtype, kind: type[nn.Module]) -> None:
    """By our kernels or, where these do not fit, by torch's."""
    model = nn.Sequential(nn.Linear(size, 32, dtype=dtype), nn.Linear(32, 16, dtype=dtype)).requires_grad_(
        False
    )
    last, x = model[1], torch.randn(3, size).to(dtype)
    expected = model[0](x)
    assert lay_out_linears(model, "int8", CPU, dtype, exact=last) == ()
    assert type(model[0]) is kind
    assert type(model[1]) is not Int8Linear
    assert "int8" not in repr(model[1])
    assert (model[0](x) - expected).norm() < 2e-2 * expected.norm()
    plain = nn.Sequential(nn.Linear(64, 32, dtype=dtype))
    lay_out_linears(plain, "int8", CPU, dtype, native=False)
    assert type(plain[0]) is Int8Linear


WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}  # as weights of 8 bits want it


def native_model(tiny: Any, family: str, quantization: str = "none", **shape: Any) -> tuple[Any, CausalModel]:
    model = tiny.model(0, family, **shape).bfloat16()
    fitted = fit(model, 256, (ROWS,))
    assert can_go_native(model, coded=quantization == "int8") == (family in ("llama", "qwen2", "mistral"))
    lay_out(model, quantization)
    return model, CausalModel(model, KVMemory(fitted.geometry, 96, CPU, attention=fitted.attention), 256)


def layers(model: Any) -> list[FusedLayer]:
    return [part for part in model.modules() if isinstance(part, FusedLayer)]


def steps() -> list[StepInputs]:
    """Prompts of two requests; then a single token and a tree; then single tokens."""
    prompts = [chunk_inputs([5, 9, 2, 77, 30, 8], 0, CPU, 3), chunk_inputs(list(range(40, 57)), 0, CPU, 40)]
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    tree = Segment(1, 4, 40, 21, torch.cat([torch.ones(4, 17, dtype=torch.bool), mask], dim=1))
    mixed = StepInputs(
        torch.tensor([11, 12, 13, 14, 15]),
        torch.tensor([6, 17, 18, 18, 19]),
        torch.tensor([9, 57, 58, 59, 60]),
        (Segment(0, 1, 3, 7), tree),
        torch.arange(5),
    )
    single = StepInputs(
        torch.tensor([21, 22]),
        torch.tensor([7, 18]),
        torch.tensor([10, 58]),
        (Segment(0, 1, 3, 8), Segment(1, 1, 40, 19)),
        torch.arange(2),
    )
    return [*prompts, mixed, single]


def logits(step_model: CausalModel) -> Tensor:
    step_model.memory.keys.zero_()
    step_model.memory.values.zero_()
    return torch.cat([step_model.forward(inputs).logits for inputs in steps()])


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_a_model(tiny: Any, family: str, quantization: str) -> None:
    """Whole layers give what their parts give, with biases and windows too."""
    model, step_model = native_model(tiny, family, quantization, **WIDE)
    assert all(layer.native is not None for layer in layers(model))
    ours = logits(step_model)
    for layer in layers(model):
        layer.native = None
    expected = logits(step_model)
    # In 8 bits what bfloat16 rounds otherwise may become another whole number.
    tolerance = 2e-2 if quantization == "none" else 5e-2
    assert (ours - expected).norm() <= tolerance * expected.norm()


def test_a_model_in_8_bits_is_near(tiny: Any) -> None:
    """To itself unrounded. These weights are made to be sensitive: `resispec fidelity` tells of real ones."""
    model, step_model = native_model(tiny, "llama", "int8", **WIDE)
    linears = [part for part in model.modules() if isinstance(part, NativeLinear)]
    assert [part.scales is None for part in linears] == [False] * 8 + [True]  # the output matrix is the last
    ours = logits(step_model)
    _, exact = native_model(tiny, "llama", **WIDE)
    expected = logits(exact)
    assert 1e-3 < (ours - expected).norm() / expected.norm() < 0.15


def test_layers_that_8_bits_do_not_fit(tiny: Any) -> None:
    model = tiny.model(0, "llama", hidden_size=48).bfloat16()
    fit(model, 256, (ROWS,))
    assert can_go_native(model)
    assert not can_go_native(model, coded=True)
    lay_out(model, "int8")
    assert all(layer.native is None for layer in layers(model))
    kinds = {type(part) for layer in layers(model) for part in layer.modules()}
    assert Int8Linear in kinds


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_row_alone_and_in_company(tiny: Any, quantization: str) -> None:
    _, step_model = native_model(tiny, "llama", quantization, **WIDE)
    for inputs in steps()[:2]:
        step_model.forward(inputs)
    *_, mixed, _ = steps()
    together = step_model.forward(mixed).logits
    alone = StepInputs(
        mixed.token_ids[:1], mixed.positions[:1], mixed.rows[:1], mixed.segments[:1], mixed.logits_index[:1]
    )
    assert torch.equal(step_model.forward(alone).logits[0], together[0])


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_other_layers_run_part_by_part(tiny: Any, family: str) -> None:
    model, _ = native_model(tiny, family)
    assert all(layer.native is None for layer in layers(model))


def test_a_layer_that_differs_stays(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = native_model(tiny, "llama")
    right = NativeLayers.run

    def wrong(self: NativeLayers, hidden: Tensor, rotation: tuple[Tensor, Tensor], step: StepContext) -> Any:
        out = right(self, hidden, rotation, step)
        return out if out is None else out + 1.0

    monkeypatch.setattr(NativeLayers, "run", wrong)
    for layer in layers(model):
        layer.native = None
    assert go_native(model) == 0
    assert all(layer.native is None for layer in layers(model))


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_layers_together(tiny: Any, quantization: str) -> None:
    """All in one call give the bits that they give one by one, a watched one among them, and prompts too."""
    model = tiny.model(0, "llama", num_hidden_layers=5, **WIDE).bfloat16()
    fitted = fit(model, 256, (ROWS,))
    lay_out(model, quantization)
    memory = KVMemory(fitted.geometry, 96, CPU, attention=fitted.attention)
    assert fitted.walk is not None
    joined, single = CausalModel(model, memory, 256, walk=fitted.walk), CausalModel(model, memory, 256)
    assert [type(part) for part in fitted.walk._runs.parts(lambda _: Watch.NONE)] == [NativeLayers]
    expected = logits(single)
    assert torch.equal(logits(joined), expected)
    seen: list[Tensor] = []
    handle = layers(model)[2].register_forward_pre_hook(
        lambda _module, args: seen.append(args[0]), with_kwargs=False
    )
    assert torch.equal(logits(joined), expected)
    assert len(seen) == len(steps())
    handle.remove()
    with LayerInputs(model, [2, 4]) as tap:
        inputs = steps()[0]
        assert torch.equal(joined.forward(inputs).logits, single.forward(inputs).logits)
        noted = tap.take()
        single.forward(inputs)
        assert all(map(torch.equal, noted, tap.take()))
    long = chunk_inputs([7 * i % 128 for i in range(50)], 0, CPU, 20)
    assert torch.equal(joined.forward(long).logits, single.forward(long).logits)
