"""The draft head: one decoder layer that guesses the target's next hidden state.

At position ``i`` it reads the token ``x_i`` and the target's state one position earlier, which holds all the
target knew when ``x_i`` was drawn (EAGLE, Li et al. 2024, arXiv 2401.15077)::

    embed(x_i) -- norm --+
                         +-- fuse 2H -> H -- attention, SwiGLU -- norm -- g_i ~ h_i
    s_(i-1) ---- norm ---+

``g_i`` lives in the space of the target's last states ``h``, so the target's output matrix turns it into
logits for ``x_(i+1)``. ``s`` is ``h``, or, for a head that reads layers of the target (as EAGLE-3 does, Li et
al. 2025, arXiv 2503.01840), ``h`` and a linear function of these layers' inputs, added up. Down a candidate
tree ``g`` stands in for ``s``, which nobody has computed yet.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kv import KVGeometry
from .base import Attention, StateHead, output_layer
from .config import HeadConfig
from .tap import StateTap


class Norm(nn.RMSNorm):
    """RMSNorm whose weight follows its input's dtype, so that a float32 master copy can train in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class LayerReader(nn.Module):
    """What a head reads of some layers of the target."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, count = config.hidden_size, len(config.target_layers)
        self.eps = config.rms_norm_eps
        self.scale = nn.Parameter(torch.ones(count, size))  # of every channel, after its layer's norm
        self.proj = nn.Linear(count * size, size, bias=False)

    def normed(self, inputs: Tensor) -> Tensor:
        """``inputs [..., count * H]``, each layer's normed and scaled by itself."""
        count, size = self.scale.shape
        parts = F.rms_norm(inputs.unflatten(-1, (count, size)), (size,), eps=self.eps)
        return (parts * self.scale.to(parts.dtype)).flatten(-2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs ``[..., count * H]`` of the layers -> ``[..., H]``."""
        out: Tensor = self.proj(self.normed(inputs))
        return out


class HeadModule(StateHead):
    """The layers of a head. It holds no embedding and no output matrix: both are the target's."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        size, width, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.reader: nn.Module | None = LayerReader(config) if config.target_layers else None
        self.embedding_norm = Norm(size, eps)
        self.hidden_norm = Norm(size, eps)
        self.fuse = nn.Linear(2 * size, size, bias=False)
        self.attention_norm = Norm(size, eps)
        self.q_proj = nn.Linear(size, queries, bias=False)
        self.k_proj = nn.Linear(size, keys, bias=False)
        self.v_proj = nn.Linear(size, keys, bias=False)
        self.o_proj = nn.Linear(queries, size, bias=False)
        self.mlp_norm = Norm(size, eps)
        self.gate_proj = nn.Linear(size, width, bias=False)
        self.up_proj = nn.Linear(size, width, bias=False)
        self.down_proj = nn.Linear(width, size, bias=False)
        self.norm = Norm(size, eps)

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    def geometry(self, dtype: torch.dtype) -> KVGeometry:
        config = self.config
        dim = config.head_dim
        return KVGeometry(1, config.num_kv_heads, dim, dim, config.hidden_size, dtype)

    def tap(self, target: Any) -> StateTap | None:
        if self.reader is None:
            return None
        return StateTap(target, self.config.target_layers, self.joined)

    def joined(self, last: Tensor, inputs: Tensor | None) -> Tensor:
        """``s [..., H]``: from the target's last states ``[..., H]`` and the inputs ``[..., K * H]`` of the
        layers that the head reads; None where it reads none.
        """
        if self.reader is None:
            return last
        assert inputs is not None, "this head reads layers of the target"
        joined: Tensor = last + self.reader(inputs)
        return joined

    def embedding(self, target: Any) -> nn.Module:
        shared: nn.Module = target.get_input_embeddings()
        return shared

    def readout(self, target: Any, vocab_ids: Tensor | None, dtype: torch.dtype) -> nn.Sequential:
        assert vocab_ids is not None, "a head comes with its draft vocabulary"
        return nn.Sequential(output_layer(target.get_output_embeddings().weight[vocab_ids].to(dtype)))

    def forward(
        self, token_embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Attention
    ) -> Tensor:
        """``token_embeddings [..., N, H]`` of ``x_i``, ``hidden [..., N, H]`` one position earlier (what
        `joined` gives, or this head's own output for a parent in the tree; zeros at position 0),
        ``positions [..., N]`` int64 -> ``g [..., N, H]``, to be read by the target's output matrix.
        """
        fused = torch.cat([self.embedding_norm(token_embeddings), self.hidden_norm(hidden)], dim=-1)
        x = self.fuse(fused)
        normed = self.attention_norm(x)
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        q = rotate(self._split(self.q_proj(normed)), cos, sin)
        k = rotate(self._split(self.k_proj(normed)), cos, sin)
        attended = attention(q, k, self._split(self.v_proj(normed)))
        x = x + self.o_proj(attended.flatten(-2))
        normed = self.mlp_norm(x)
        x = x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        out: Tensor = self.norm(x)
        return out

    def _split(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], -1, self.config.head_dim)


def rotary(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[..., N, 1, D]`` of rotary positions (Su et al. 2021, arXiv 2104.09864).

    Both halves of ``D`` carry the same frequencies, the "rotate half" layout of the Llama family. Angles
    are computed in float32: bfloat16 cannot tell neighbouring positions apart beyond 256.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions[..., None, None].float() * theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x [..., N, heads, D]`` by the angles of ``rotary``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
