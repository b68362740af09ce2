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
from resispec.models.native.products import native_products
from resispec.models.pack import NativeLinear, pack_linears

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(native_products() is None, reason="no kernels for this processor were built")


def linear(size: int, outputs: int, *, bias: bool) -> nn.Linear:
    torch.manual_seed(size + outputs)
    return nn.Linear(size, outputs, bias=bias).bfloat16()


def products(plain: nn.Linear) -> NativeLinear:
    found = native_products()
    assert found is not None
    return NativeLinear(plain, found)


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


def test_shapes_and_dtypes() -> None:
    """As `nn.Linear` takes them: more axes, views, other number formats."""
    plain = linear(64, 48, bias=True)
    packed, x = products(plain), torch.randn(2, 3, 128)[..., ::2]
    expected = plain(x.bfloat16())
    torch.testing.assert_close(packed(x), expected, rtol=2**-7, atol=1e-3)


def test_the_same_bits_in_any_company() -> None:
    packed, x = products(linear(576, 200, bias=True)), torch.randn(61, 576).bfloat16()
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


def native_model(tiny: Any, family: str, **shape: Any) -> tuple[Any, CausalModel]:
    model = tiny.model(0, family, **shape).bfloat16()
    fitted = fit(model, 256, (ROWS,))
    lay_out(model, "none")
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


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_a_model(tiny: Any, family: str) -> None:
    """Whole layers give what their parts give, with biases and windows too."""
    model, step_model = native_model(tiny, family)
    assert all(layer.native is not None for layer in layers(model))
    ours = logits(step_model)
    for layer in layers(model):
        layer.native = None
    expected = logits(step_model)
    assert (ours - expected).norm() <= 2e-2 * expected.norm()


def test_a_row_alone_and_in_company(tiny: Any) -> None:
    model, step_model = native_model(tiny, "llama")
    assert can_go_native(model)
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
    assert not can_go_native(model)
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


def test_layers_together(tiny: Any) -> None:
    """All in one call give the bits that they give one by one, a watched one among them, and prompts too."""
    model = tiny.model(0, "llama", num_hidden_layers=5).bfloat16()
    fitted = fit(model, 256, (ROWS,))
    lay_out(model, "none")
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
