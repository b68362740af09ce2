"""The functions that are compiled: a decoder layer in two halves around its attention, or whole.

Weights are constants of the compiled code, bound anew for every layer of a model. The numbers of tokens and
of KV rows are symbols, so that one compilation serves steps of every shape.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resispec.models.fuse.activation import ACTIVATIONS

from .spec import LayerSpec


class LayerRegion(nn.Module):
    """What the functions share: products, norms, the feed-forward block."""

    def __init__(self, spec: LayerSpec) -> None:
        """With weights of zeros, in the layout that is compiled for."""
        super().__init__()
        self.spec = spec
        for name, size in spec.norms.items():
            # Not a vector: the compiler writes one of up to eight numbers into the code, where none is bound.
            self.register_buffer(f"{name}_norm", torch.zeros(1, size))
        for name, (rows, columns) in spec.products.items():
            dtype = torch.int8 if spec.weights == "int8" else spec.torch_dtype
            self.register_buffer(f"{name}_weight", torch.zeros(rows, columns, dtype=dtype))
            if spec.weights == "int8":
                self.register_buffer(f"{name}_scale", torch.zeros(rows, dtype=spec.torch_dtype))
            if name in spec.biases:
                self.register_buffer(f"{name}_bias", torch.zeros(rows, dtype=spec.torch_dtype))
        self._eps = dict(zip(spec.norms, spec.eps, strict=True))

    def product(self, name: str, x: Tensor) -> Tensor:
        """x: [N, in] -> [N, out]."""
        weight = getattr(self, f"{name}_weight")
        bias = getattr(self, f"{name}_bias") if name in self.spec.biases else None
        if self.spec.weights == "plain":
            return F.linear(x, weight, bias)
        output: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
        return output

    def norm(self, name: str, x: Tensor) -> Tensor:
        """x: [..., H] -> [..., H]."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps[name])
        weighted: Tensor = scaled * getattr(self, f"{name}_norm")
        return weighted.to(x.dtype)

    def begin(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, rows: Tensor
    ) -> Tensor:
        """Up to the attention: writes keys and values to their rows, gives queries [N, heads, D].

        hidden: [N, H]. cos, sin: [N, 1, D], the first half of the sines negated. keys, values: the layer's KV
        memory [rows, KV heads, D]. rows: [N] int64.
        """
        spec = self.spec
        heads = self.product("qkv", self.norm("before_attention", hidden))
        heads = heads.view(-1, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        queries, own_keys, own_values = heads.split([spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
        if spec.norms_of_heads:
            queries, own_keys = self.norm("of_queries", queries), self.norm("of_keys", own_keys)
        keys.index_copy_(0, rows, _turn(own_keys, cos, sin))
        values.index_copy_(0, rows, own_values)
        return _turn(queries, cos, sin)

    def end(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """From the attention on. attended: [N, heads * D], hidden: [N, H] -> [N, H]."""
        attended = self.product("output", attended)
        if self.spec.norms_after:
            attended = self.norm("after_attention", attended)
        hidden = hidden + attended
        gate, up = self.product("gate_up", self.norm("before_mlp", hidden)).chunk(2, dim=-1)
        fed = self.product("down", ACTIVATIONS[self.spec.activation](gate) * up)
        if self.spec.norms_after:
            fed = self.norm("after_mlp", fed)
        return hidden + fed


class Begin(LayerRegion):
    """The half before the attention."""

    def forward(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, rows: Tensor
    ) -> Tensor:
        return self.begin(hidden, cos, sin, keys, values, rows)


class End(LayerRegion):
    """The half after the attention."""

    def forward(self, attended: Tensor, hidden: Tensor) -> Tensor:
        return self.end(attended, hidden)


class Single(LayerRegion):
    """A layer for one token of one request, its attention included: little else happens in such a step."""

    def product(self, name: str, x: Tensor) -> Tensor:
        """x: [1, in] -> [1, out]: a sum over plain weights, which are read as fast as memory gives them."""
        if self.spec.weights == "packed":
            return super().product(name, x)
        weight: Tensor = getattr(self, f"{name}_weight")
        output = (weight.float() * x[0].float()).sum(-1)
        if self.spec.weights == "int8":
            output = output * getattr(self, f"{name}_scale").float()
        if name in self.spec.biases:
            output = output + getattr(self, f"{name}_bias").float()
        return output.to(x.dtype)[None]

    def forward(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, rows: Tensor
    ) -> Tensor:
        """hidden: [1, H] -> [1, H]. keys, values: the rows [L, KV heads, D] that the token sees.

        The others as in `begin`; ``rows`` counts from the first of these rows.
        """
        spec = self.spec
        queries = self.begin(hidden, cos, sin, keys, values, rows).float() * spec.scaling
        grouped = queries.view(spec.kv_heads, -1, 1, spec.head_dim)
        # [KV heads, 1, L, D]; not a product of matrices, which would want them transposed in memory.
        seen_keys, seen_values = (pool.permute(1, 0, 2)[:, None].float() for pool in (keys, values))
        scores = (grouped * seen_keys).sum(-1)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        attended = (weights[..., None] * seen_values).sum(-2) / weights.sum(-1, keepdim=True)
        return self.end(attended.view(1, -1).to(hidden.dtype), hidden)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of x [N, heads, D]: the two halves of each head are coordinates in a plane."""
    first, second = x.chunk(2, dim=-1)
    (cos_first, cos_second), (sin_first, sin_second) = cos.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    return torch.cat(
        [first * cos_first + second * sin_first, second * cos_second + first * sin_second], dim=-1
    )
