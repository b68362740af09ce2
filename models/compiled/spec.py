"""What a compiled layer is made for. Layers of one shape share one compilation; weights are no part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resispec.models.fuse.activation import activation_name
from resispec.models.fuse.layer import FusedLayer
from resispec.models.fuse.mlp import FusedMLP
from resispec.models.pack import PackedLinear
from resispec.models.quantize import Int8Linear

_WEIGHTS: dict[type, str] = {nn.Linear: "plain", PackedLinear: "packed", Int8Linear: "int8"}


class CannotCompileError(Exception):
    """Why layers cannot be compiled: what can be said of "they"."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer's shape and arithmetic."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    eps: tuple[float, ...]  # of the norms: before attention and feed-forward block, after both, of heads
    norms_after: bool
    norms_of_heads: bool
    biases: tuple[str, ...]  # of `PRODUCTS`, those with one
    activation: str
    weights: str  # plain; packed: laid out for oneDNN; int8: integers with a scale for each row
    dtype: str
    threads: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LayerSpec:
        """values: of `dataclasses.asdict`, with lists where tuples were."""
        whole: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return cls(**whole)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each weight."""
        queries = self.heads * self.head_dim
        return {
            "qkv": (queries + 2 * self.kv_heads * self.head_dim, self.hidden),
            "output": (self.hidden, queries),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def norms(self) -> dict[str, int]:
        """Size of each norm's weight, in the order of `eps`."""
        sizes = {"before_attention": self.hidden, "before_mlp": self.hidden}
        if self.norms_after:
            sizes |= {"after_attention": self.hidden, "after_mlp": self.hidden}
        if self.norms_of_heads:
            sizes |= {"of_queries": self.head_dim, "of_keys": self.head_dim}
        return sizes


def layer_spec(layer: FusedLayer, dtype: torch.dtype, threads: int) -> LayerSpec:
    """Raises CannotCompileError."""
    attention, mlp = layer.self_attn, layer.mlp
    if not isinstance(mlp, FusedMLP):
        raise CannotCompileError("their feed-forward blocks run unfused")
    linears = _linears(layer)
    kinds = {_WEIGHTS.get(type(linear)) for linear in linears.values()}
    weights = kinds.pop()
    if weights is None or kinds:
        raise CannotCompileError("their weights are of a kind that is not compiled")
    columns = {name: int(linear.in_features) for name, linear in linears.items()}
    return LayerSpec(
        hidden=columns["qkv"],
        intermediate=columns["down"],
        heads=columns["output"] // attention.head_dim,
        kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        scaling=attention.scaling,
        eps=tuple(norm.eps for norm in _norms(layer).values()),
        norms_after=layer.after is not None,
        norms_of_heads=attention.norms is not None,
        biases=tuple(name for name, linear in linears.items() if linear.bias is not None),
        activation=_activation(mlp.activation),
        weights=weights,
        dtype=str(dtype).removeprefix("torch."),
        threads=threads,
    )


def layer_weights(layer: FusedLayer) -> dict[str, Tensor]:
    """A layer's own weights by the names that its compiled form has for them."""
    weights = {f"{name}_norm": norm.weight[None] for name, norm in _norms(layer).items()}
    for name, linear in _linears(layer).items():
        weights[f"{name}_weight"] = linear.weight.detach()
        if isinstance(linear, Int8Linear):
            weights[f"{name}_scale"] = linear.scale
        if linear.bias is not None:
            weights[f"{name}_bias"] = linear.bias.detach()
    return weights


def _linears(layer: FusedLayer) -> dict[str, Any]:
    attention, mlp = layer.self_attn, layer.mlp
    assert isinstance(mlp, FusedMLP)
    linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    return dict(zip(("qkv", "output", "gate_up", "down"), linears, strict=True))


def _norms(layer: FusedLayer) -> dict[str, Any]:
    norms: dict[str, Any] = dict(zip(("before_attention", "before_mlp"), layer.before, strict=True))
    if layer.after is not None:
        norms |= zip(("after_attention", "after_mlp"), layer.after, strict=True)
    if layer.self_attn.norms is not None:
        norms |= zip(("of_queries", "of_keys"), layer.self_attn.norms, strict=True)
    return norms


def _activation(function: Any) -> str:
    name = activation_name(function)
    if name is None:
        raise CannotCompileError("their activation function is of no known kind")
    return name
