"""EAGLE heads: one Llama layer that guesses the state the target will have next.

EAGLE (Li et al. 2024, arXiv 2401.15077), and EAGLE-2, which differs in the tree only::

    embed(x_i), h_(i-1) -- fc 2H -> H -- attention -- MLP -- g_i        logits: the target's output matrix

``h`` are the target's last states and ``g`` guesses of them. EAGLE-3 (Li et al. 2025, arXiv 2503.01840)
reads three layers of the target, joined by ``fc 3H -> H``, and says nothing of its last state any more::

    embed(x_i) -- norm --+
                         +-- attention (2H -> H) -- MLP -- g_i -- norm -- output matrix of its own
    h_(i-1) ----- norm --+

Down a tree ``g`` stands in for ``h``. The first token of a text has no ``h`` before it, so neither has ever
seen one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ..base import ModelError
from ..head.base import Attention, StateHead, output_layer
from ..head.module import rotate
from ..head.tap import StateTap
from ..kv import KVGeometry
from .config import EAGLE3, EagleConfig


class EagleModule(StateHead):
    """The layers of either generation."""

    skips_first = True

    def __init__(self, config: EagleConfig, *, own_embedding: bool, own_output: int, fuse_bias: bool) -> None:
        """own_output: rows of an output matrix of its own; 0: the target's serves."""
        super().__init__()
        self.config = config
        layer, size = config.layer, int(config.layer.hidden_size)
        self.is_eagle3 = config.generation == EAGLE3
        states = 3 * config.target_hidden_size if self.is_eagle3 else 2 * size
        self.fc = nn.Linear(states, size, bias=fuse_bias)
        self.layer = _Layer(layer, normed=self.is_eagle3)
        self.embed_tokens = nn.Embedding(layer.vocab_size, size) if own_embedding else None
        self.output = nn.Sequential()
        if self.is_eagle3:
            self.output.add_module("norm", nn.RMSNorm(size, eps=layer.rms_norm_eps))
        if own_output:
            self.output.add_module("lm_head", nn.Linear(size, own_output, bias=False))

    @property
    def max_positions(self) -> int:
        return int(self.config.layer.max_position_embeddings)

    def geometry(self, dtype: torch.dtype) -> KVGeometry:
        layer = self.config.layer
        dim = self.layer.head_dim
        return KVGeometry(1, layer.num_key_value_heads, dim, dim, layer.hidden_size, dtype)

    def tap(self, target: Any) -> StateTap | None:
        if not self.is_eagle3:
            return None
        numbers = self.config.layers_of(int(target.config.num_hidden_layers))
        return StateTap(target, numbers, self._join)

    def _join(self, _last: Tensor, states: Tensor) -> Tensor:
        joined: Tensor = self.fc(states)
        return joined

    def embedding(self, target: Any) -> nn.Module:
        if self.embed_tokens is not None:
            return self.embed_tokens
        shared: nn.Module = target.get_input_embeddings()
        return shared

    def readout(self, target: Any, vocab_ids: Tensor | None, dtype: torch.dtype) -> nn.Sequential:
        if hasattr(self.output, "lm_head"):
            return self.output
        matrix = target.get_output_embeddings().weight.to(dtype)
        return nn.Sequential(*self.output, output_layer(matrix if vocab_ids is None else matrix[vocab_ids]))

    def forward(
        self, token_embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Attention
    ) -> Tensor:
        """``token_embeddings [N, H]`` of ``x_i``, ``hidden [N, H]`` one position earlier, ``positions [N]``
        int64 -> ``g [N, H]``.
        """
        if self.is_eagle3:
            normed = self.layer.hidden_norm(hidden)
            residual = normed if self.config.norm_before_residual else hidden
            x = torch.cat([self.layer.input_layernorm(token_embeddings), normed], dim=-1)
        else:
            x = residual = self.fc(torch.cat([token_embeddings, hidden], dim=-1))
        states: Tensor = self.layer(x, residual, positions, attention)
        return states


class _Layer(nn.Module):
    """Attention and MLP. Where ``normed``, it reads twice the width, and both halves have a norm."""

    def __init__(self, config: Any, *, normed: bool) -> None:
        super().__init__()
        size, width, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        self.head_dim = int(getattr(config, "head_dim", None) or size // config.num_attention_heads)
        queries, keys = (n * self.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        if normed:
            self.input_layernorm = nn.RMSNorm(size, eps=eps)
            self.hidden_norm = nn.RMSNorm(size, eps=eps)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(2 * size if normed else size, out, bias=False) for out in (queries, keys, keys)
        )
        self.o_proj = nn.Linear(queries, size, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=eps)
        self.gate_proj = nn.Linear(size, width, bias=False)
        self.up_proj = nn.Linear(size, width, bias=False)
        self.down_proj = nn.Linear(width, size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor, residual: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        cos, sin = (part[0, :, None] for part in self.rotary(x, positions[None]))  # [N, 1, D]
        q, k, v = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        attended = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = residual + self.o_proj(attended.flatten(-2))
        normed = self.post_attention_layernorm(x)
        out: Tensor = x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        return out

    def _split(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], -1, self.head_dim)


def check_target(config: EagleConfig, target: Any, names: Sequence[str]) -> None:
    """Raise ModelError where the head's sizes are not those of a head for ``target``.

    names: tensors it brings along.
    """
    wide = int(target.get_input_embeddings().weight.shape[1])
    if config.target_hidden_size != wide:
        raise ModelError(
            f"it is for a target with hidden states of {config.target_hidden_size}, this one's have {wide}"
        )
    if "embed_tokens.weight" not in names and config.layer.hidden_size != wide:
        raise ModelError(f"it has no embedding of its own and is {config.layer.hidden_size} wide, not {wide}")
