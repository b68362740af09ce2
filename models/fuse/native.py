"""A decoder layer in one call, for steps of few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs
from resispec.models.kv import ROWS, KVGeometry, KVMemory
from resispec.models.native import native_kernels
from resispec.models.native.products import (
    PANEL,
    LayerArguments,
    MatrixArguments,
    NativeProducts,
    native_products,
)
from resispec.models.pack import NativeLinear

from .activation import activation_name
from .layer import FusedLayer, LayerRun
from .mlp import FusedMLP

_TOKENS = 5
_TOLERANCE = 3e-2  # relative: both round to bfloat16, in other places


class NativeLayer:
    """Does the arithmetic of a fused layer whose products are `NativeLinear`."""

    def __init__(self, layer: FusedLayer, products: NativeProducts) -> None:
        """layer: one that `fits`."""
        attention: Any = layer.self_attn
        mlp: Any = layer.mlp
        first, second = layer.norms_before
        self._layer, self._window = attention.layer, attention.window
        self._products = products
        self._parts = layer  # what the arguments point to
        head_dim = attention.head_dim
        self._arguments = LayerArguments(
            first.weight.data_ptr(),
            second.weight.data_ptr(),
            _matrix(attention.qkv_proj),
            _matrix(attention.o_proj),
            _matrix(mlp.gate_up_proj),
            _matrix(mlp.down_proj),
            first.weight.shape[0],
            attention.o_proj.in_features // head_dim,
            attention.num_kv_heads,
            head_dim,
            attention.window or 0,
            first.eps,
            second.eps,
            attention.scaling,
        )

    def run(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor], step: StepContext
    ) -> Tensor | None:
        """hidden: [N, H] -> [N, H]; the step's keys and values are in their KV rows afterwards.

        None: a step with long chunks of prompts, whose attention is a product of large matrices.
        """
        arguments = step.few(*position_embeddings, self._window)
        if arguments is None or hidden.dtype is not torch.bfloat16:
            return None
        keys, values = step.memory.layer(self._layer)
        return self._products.run_layer(hidden.contiguous(), keys, values, self._arguments, arguments)


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
        native = NativeLayer(layer, products)
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


def can_go_native(model: nn.Module) -> bool:
    """Whether all layers of ``model`` could, packed."""
    layers = [part for part in model.modules() if isinstance(part, FusedLayer)]
    return native_products() is not None and bool(layers) and all(map(_fits, layers))


def _is_packed(layer: FusedLayer) -> bool:
    mlp: Any = layer.mlp
    return type(mlp.down_proj) is NativeLinear


def _fits(layer: FusedLayer) -> bool:
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
        all(type(matrix) is NativeLinear or NativeLinear.fits(matrix) for matrix in matrices)
        and kernels.attends(torch.bfloat16, attention.head_dim)
        and down.in_features % PANEL == 0
    )


def _matrix(linear: NativeLinear) -> MatrixArguments:
    bias = None if linear.bias is None else linear.bias.data_ptr()
    return MatrixArguments(linear.weight.data_ptr(), bias, linear.in_features, linear.out_features)
