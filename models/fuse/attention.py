"""An attention block with one product for queries, keys and values, and few small operations.

The projections, the rotation and the KV rows are in the layout ``[tokens, heads, dim]`` from end to end,
so nothing is transposed or copied on the way for a single token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resispec.models.attention import STEP_KEYWORD, StepContext

from .linear import join
from .norm import FusedRMSNorm, fused_norms


class FusedAttention(nn.Module):
    """Takes the place of a block of transformers' that goes through the attention interface."""

    def __init__(
        self,
        qkv: nn.Module,
        output: nn.Module,
        norms: tuple[FusedRMSNorm, FusedRMSNorm] | None,
        *,
        layer: int,
        num_kv_heads: int,
        head_dim: int,
        scaling: float,
        window: int | None,
    ) -> None:
        """norms: of each head of the queries and the keys, before they are rotated."""
        super().__init__()
        self.qkv_proj = qkv
        self.o_proj = output
        self.norms = nn.ModuleList(norms) if norms else None
        self.layer = layer
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scaling = scaling
        self.window = window

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states: [1, N, H] -> [1, N, H]; position_embeddings: cosines and sines [1, N, head dim]."""
        return self.run(hidden_states[0], position_embeddings, kwargs[STEP_KEYWORD])[None], None

    def run(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, step: StepContext
    ) -> Tensor:
        """hidden: [N, H] -> [N, H]; the step's keys and values are in their KV rows afterwards."""
        heads = self.qkv_proj.forward(hidden).view(hidden.shape[0], -1, self.head_dim)
        kv_heads = self.num_kv_heads
        if self.norms is not None:
            query_norm, key_norm = self.norms
            queries, keys, values = heads.tensor_split((-2 * kv_heads, -kv_heads), dim=1)
            heads = torch.cat([query_norm(queries), key_norm(keys), values], dim=1)
        rotation = None if position_embeddings is None else step.rotation(*position_embeddings)
        if rotation is not None and step.rotate(self.layer, heads, *rotation):
            return self._attend(heads[:, : -2 * kv_heads], step)
        turned, values = heads[:, :-kv_heads], heads[:, -kv_heads:]
        if rotation is not None:
            cos, sin = rotation
            # x cos + rotate_half(x) sin, the sign being in `sin`: half a turn of the axis swaps the halves.
            turned = torch.addcmul(turned * cos, turned.roll(self.head_dim // 2, -1), sin)
        step.memory.write(self.layer, step.inputs.rows, turned[:, -kv_heads:], values)
        return self._attend(turned[:, :-kv_heads], step)

    def _attend(self, queries: Tensor, step: StepContext) -> Tensor:
        attended = step.attend(queries, self.layer, self.scaling, self.window)
        output: Tensor = self.o_proj.forward(attended.flatten(1))
        return output


def fused_attentions(
    module: Any, *, scaling: float, window: int | None, num_kv_heads: int, head_dim: int
) -> list[FusedAttention]:
    """What ``module`` may be; empty for one that does not look like a block of this kind.

    scaling, window: what the block handed to the attention interface.
    """
    projections = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    if projections == [None] * 3:
        projections = [getattr(module, "qkv_proj", None)]
    output = getattr(module, "o_proj", None)
    joined = join(projections)
    if joined is None or output is None or module.head_dim != head_dim:
        return []
    return [
        FusedAttention(
            joined,
            output,
            norms,
            layer=int(module.layer_idx),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scaling=scaling,
            window=window,
        )
        for norms in _head_norms(module, head_dim)
    ]


def _head_norms(module: Any, head_dim: int) -> list[tuple[FusedRMSNorm, FusedRMSNorm] | None]:
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    if norms == [None, None]:
        return [None]
    if any(norm is None or getattr(norm, "weight", torch.empty(0)).shape != (head_dim,) for norm in norms):
        return []
    return list(zip(*(fused_norms(norm) for norm in norms), strict=True))
