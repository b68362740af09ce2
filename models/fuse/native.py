"""Decoder layers in one call, for steps of few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs
from resispec.models.kv import ROWS, KVGeometry, KVMemory
from resispec.models.native import native_kernels
from resispec.models.native.products import PANEL, LayerArguments, NativeProducts, native_products
from resispec.models.pack import NativeLinear

from .activation import activation_name
from .layer import FusedLayer, LayerRun
from .mlp import FusedMLP

_TOKENS = 5
_TOLERANCE = 3e-2  # relative: both round to bfloat16, in other places


class NativeLayers:
    """Does the arithmetic of fused layers that follow each other, whose products are `NativeLinear`."""

    def __init__(self, layers: Sequence[FusedLayer], products: NativeProducts) -> None:
        """layers: ones that fit, alike in all sizes."""
        self._products = products
        self.layers = tuple(layers)  # what the arguments point to
        attention: Any = layers[0].self_attn
        self.first, self.last = int(attention.layer), int(attention.layer) + len(layers) - 1
        self._window = attention.window
        self._arguments = (LayerArguments * len(layers))(*map(_arguments, layers))
        one = self._arguments[0]
        matrices = one.qkv, one.output, one.gate_up, one.down
        shapes = [(matrix.size, matrix.outputs, bool(matrix.scales)) for matrix in matrices]
        self.sizes = (*shapes, one.heads, one.kv_heads, one.dim, one.window, one.scaling)

    def run(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor], step: StepContext
    ) -> Tensor | None:
        """hidden: [N, H] -> [N, H]; the step's keys and values are in their KV rows afterwards.

        None: a step with long chunks of prompts, whose attention is a product of large matrices.
        """
        arguments = step.few(*position_embeddings, self._window)
        if arguments is None or hidden.dtype is not torch.bfloat16:
            return None
        keys, values = step.memory.layers(self.first, len(self.layers))
        return self._products.run_layers(hidden.contiguous(), keys, values, self._arguments, arguments)


class Watch(Enum):
    NONE = auto()
    INPUT = auto()  # somebody wants to know what goes in: the layer is the first of those it is joined with
    ALL = auto()  # the layer is joined with no others


class NativeRuns:
    """The layers of a decoder, in order, those that can in one call together."""

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        self._layers = tuple(layers)
        self._state: list[tuple[object, ...]] = []  # of every layer when the parts were found
        self._parts: tuple[FusedLayer | NativeLayers, ...] = ()

    def parts(self, watch: Callable[[FusedLayer], Watch]) -> tuple[FusedLayer | NativeLayers, ...]:
        """watch: who looks at a layer from outside, which goes by its hooks."""
        state = [_state(layer) for layer in self._layers]  # in every step: what it takes counts
        if state != self._state:
            self._state, self._parts = state, tuple(self._join(watch))
        return self._parts

    def _join(self, watch: Callable[[FusedLayer], Watch]) -> Iterator[FusedLayer | NativeLayers]:
        products = native_products()
        joined: list[FusedLayer] = []
        for layer in (*self._layers, None):
            seen = Watch.ALL if layer is None else watch(layer)
            if joined and (layer is None or seen is not Watch.NONE or not _follows(joined[-1], layer)):
                yield NativeLayers(joined, products) if products and len(joined) > 1 else joined[0]
                joined = []
            if layer is not None and isinstance(layer.quicker, NativeLayers) and seen is not Watch.ALL:
                joined.append(layer)
            elif layer is not None:
                yield layer


def _state(layer: FusedLayer) -> tuple[object, ...]:
    before, after = layer._forward_pre_hooks, layer._forward_hooks
    return layer.compiled, layer.native, before and tuple(before), after and tuple(after)


def _follows(before: FusedLayer, layer: FusedLayer) -> bool:
    """Whether they can run in one call."""
    first, second = before.quicker, layer.quicker
    if not (isinstance(first, NativeLayers) and isinstance(second, NativeLayers)):
        return False
    return first.sizes == second.sizes and first.last + 1 == second.first


@torch.inference_mode()
def go_native(model: nn.Module) -> int:
    """Let every layer of ``model`` that can run in one call; returns how many. Its weights must be packed.

    A layer that gives other results in one call than part by part goes on part by part.
    """
    products = native_products()
    layers = [
        part for part in model.modules() if isinstance(part, FusedLayer) and _fits(part) and _is_packed(part)
    ]
    if products is None or not layers:
        return 0
    trial = _Trial(layers)
    for layer in layers:
        native = NativeLayers([layer], products)
        layer.native = native if trial.agree(layer, native) else None
    return sum(layer.native is not None for layer in layers)


class _Trial:
    """A step of a few tokens of made-up numbers."""

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        attentions: list[Any] = [layer.self_attn for layer in layers]
        dim, size = attentions[0].head_dim, attentions[0].qkv_proj.in_features
        depth = 1 + max(attention.layer for attention in attentions)
        geometry = KVGeometry(depth, attentions[0].num_kv_heads, dim, dim, size, torch.bfloat16)
        device = torch.device("cpu")
        self._step = StepContext(KVMemory(geometry, _TOKENS, device, attention=ROWS), _chunk(device))
        random = torch.Generator().manual_seed(0)
        angles = 3.0 * torch.rand(1, _TOKENS, dim // 2, generator=random).repeat(1, 1, 2)
        self._rotation = angles.cos().bfloat16(), angles.sin().bfloat16()
        self._hidden = torch.randn(_TOKENS, size, generator=random).bfloat16()

    def agree(self, layer: FusedLayer, native: LayerRun) -> bool:
        expected = layer.run(self._hidden, self._rotation, self._step).float()
        ours = native.run(self._hidden, self._rotation, self._step)
        return ours is not None and bool((ours.float() - expected).norm() <= _TOLERANCE * expected.norm())


def _chunk(device: torch.device) -> StepInputs:
    places = torch.arange(_TOKENS, device=device)
    return StepInputs(places, places, places, (Segment(0, _TOKENS, 0, _TOKENS),), places)


def can_go_native(model: nn.Module, *, coded: bool = False) -> bool:
    """Whether all layers of ``model`` could, packed; coded: with weights of 8 bits."""
    layers = [part for part in model.modules() if isinstance(part, FusedLayer)]
    return native_products() is not None and bool(layers) and all(_fits(layer, coded) for layer in layers)


def _is_packed(layer: FusedLayer) -> bool:
    mlp: Any = layer.mlp
    return type(mlp.down_proj) is NativeLinear


def _fits(layer: FusedLayer, coded: bool = False) -> bool:
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    if type(mlp) is not FusedMLP or activation_name(mlp.activation) != "silu":
        return False
    down: Any = mlp.down_proj
    matrices = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, down
    kernels = native_kernels()
    if kernels is None or layer.after is not None or attention.norms is not None:
        return False
    return (
        all(type(matrix) is NativeLinear or NativeLinear.fits(matrix, coded=coded) for matrix in matrices)
        and kernels.attends(torch.bfloat16, attention.head_dim)
        and down.in_features % PANEL == 0
    )


def _arguments(layer: FusedLayer) -> LayerArguments:
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    first, second = layer.norms_before
    return LayerArguments(
        first.weight.data_ptr(),
        second.weight.data_ptr(),
        attention.qkv_proj.arguments,
        attention.o_proj.arguments,
        mlp.gate_up_proj.arguments,
        mlp.down_proj.arguments,
        first.weight.shape[0],
        attention.o_proj.in_features // attention.head_dim,
        attention.num_kv_heads,
        attention.head_dim,
        attention.window or 0,
        first.eps,
        second.eps,
        attention.scaling,
    )
