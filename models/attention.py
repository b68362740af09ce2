"""Attention of a packed step: every request's tokens against that request's own rows, nothing else.

Registered with transformers under one name, so that any decoder that goes through its attention
interface runs on our KV memory without a copied line of model code. The step travels to it in the
model call's keyword arguments: nothing is global.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import ModelError, Segment, StepInputs
from .kv import KVMemory

ATTENTION_NAME = "resispec_packed"  # no "flash", "sdpa" or "flex_attention": transformers would treat it so
STEP_KEYWORD = "resispec_step"


class CacheShape:
    """What decoders ask of transformers' `Cache` beside `update`: it looks empty, positions are given."""

    is_compileable = False

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return query_length, 0


class StepContext(CacheShape):
    """One step on its way through a model: what its cache and its attention need to know.

    Masks are made once per step and per sliding window, not once per layer.
    """

    def __init__(self, memory: KVMemory, inputs: StepInputs) -> None:
        self.memory = memory
        self.inputs = inputs
        self._biases: dict[tuple[int, int | None, int], Tensor | None] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the step's keys and values ([1, kv heads, N, dim]) to their rows."""
        self.memory.write(layer, self.inputs.rows, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return keys, values

    def bias(self, index: int, window: int | None, groups: int) -> Tensor | None:
        """Additive mask of segment ``index``, query groups folded: [groups * length, kv_length]."""
        key = (index, window, groups)
        if key not in self._biases:
            segment = self.inputs.segments[index]
            visible = _visible(segment, self.inputs.positions, window)
            self._biases[key] = None if visible is None else self._additive(visible).repeat(groups, 1)
        return self._biases[key]

    def _additive(self, visible: Tensor) -> Tensor:
        bias = torch.zeros(visible.shape, dtype=self.memory.geometry.dtype, device=visible.device)
        return bias.masked_fill_(~visible, float("-inf"))


def _visible(segment: Segment, positions: Tensor, window: int | None) -> Tensor | None:
    """What a segment's tokens see: [length, kv_length] bool, or None when that is everything.

    Row ``j`` of a request holds position ``j``, but for tree nodes, whose rows lie at or behind their
    positions and within the tree's depth of them; so a window wider than a tree can go by rows.
    """
    queries = positions[segment.start : segment.start + segment.length, None]
    mask = segment.mask
    if mask is None:
        if segment.length == 1 and (window is None or segment.kv_length <= window):
            return None
        first = segment.kv_length - segment.length
        own = torch.arange(first, segment.kv_length, device=positions.device)[:, None]
        mask = torch.arange(segment.kv_length, device=positions.device)[None, :] <= own
    if window is not None and segment.kv_length > window:
        rows = torch.arange(segment.kv_length, device=positions.device)[None, :]
        mask = mask & (rows > queries - window)
    return mask


def attend(query: Tensor, step: StepContext, layer: int, scaling: float, window: int | None) -> Tensor:
    """query: [query heads, N, key dim] -> [N, query heads, value dim].

    The query heads that share a KV head are folded into the query axis, which spares repeating keys
    and values (stock SDPA repeats them when there is a mask).
    """
    heads, num_tokens, key_dim = query.shape
    memory = step.memory
    kv_heads, value_dim = memory.geometry.num_kv_heads, memory.geometry.value_dim
    groups = heads // kv_heads
    output = query.new_empty(num_tokens, heads, value_dim)
    keys, values = memory.keys[layer], memory.values[layer]
    for index, segment in enumerate(step.inputs.segments):
        start, stop = segment.start, segment.start + segment.length
        kv_start, kv_stop = segment.kv_start, segment.kv_start + segment.kv_length
        attended = F.scaled_dot_product_attention(
            query[:, start:stop].reshape(1, kv_heads, groups * segment.length, key_dim),
            keys[kv_start:kv_stop].transpose(0, 1)[None],
            values[kv_start:kv_stop].transpose(0, 1)[None],
            attn_mask=step.bias(index, window, groups),
            scale=scaling,
        )
        folded = attended.view(heads, segment.length, value_dim)
        output[start:stop] = folded.transpose(0, 1)
    return output


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention interface of transformers. query: [1, query heads, N, dim] -> [1, N, query heads, dim].

    Raises ModelError for a kind of attention this one would get silently wrong.
    """
    step = kwargs.get(STEP_KEYWORD)
    layer = getattr(module, "layer_idx", None)
    if not isinstance(step, StepContext) or layer is None:
        raise ModelError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention, so it cannot run "
            "on the server's KV memory; a model whose attention goes through transformers' interface would"
        )
    for name in ("softcap", "s_aux", "head_mask", "position_bias"):
        if kwargs.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses {name} in its attention, which is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query[0], step, int(layer), scale, sliding_window)[None], None


def register_attention() -> None:
    """Make the attention known to transformers under `ATTENTION_NAME`. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, packed_attention)
