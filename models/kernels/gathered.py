"""Attention over gathered rows: one batched product for all requests, padded to the longest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from resispec.models.kv import KVMemory
from resispec.models.visibility import Visibility, sees


class GatheredAttention:
    """Reads and writes every key once more than needed, and so suits contexts that are not long.

    Only a request's own rows are read: what pads a short one is its own last row.
    """

    def __init__(self, memory: KVMemory, visibility: Visibility) -> None:
        assert visibility.grid is not None
        self._memory = memory
        self._visibility = visibility
        self._grid = grid = visibility.grid
        self._offsets = torch.arange(grid.context, device=grid.starts.device)
        last = grid.lengths[:, None] - 1
        self._rows = grid.starts[:, None] + torch.minimum(self._offsets, last)  # [B, L]
        self._seen: dict[int | None, Tensor] = {}

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, key dim] -> [N, query heads, value dim].

        The query heads that share a KV head are folded into the query axis.
        """
        (count, length), (heads, key_dim) = self._grid.members.shape, query.shape[1:]
        kv_heads, value_dim = self._memory.geometry.num_kv_heads, self._memory.geometry.value_dim
        groups = heads // kv_heads
        own = query.index_select(0, self._grid.members.flatten())
        folded = own.view(count, length, kv_heads, groups, key_dim).permute(0, 2, 3, 1, 4)
        keys, values = (
            pool.flatten(1).index_select(0, self._rows.flatten()).view(count, -1, kv_heads, pool.shape[2])
            for pool in self._memory.layer(layer)
        )
        attended = F.scaled_dot_product_attention(
            folded.reshape(count, kv_heads, groups * length, key_dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=self._mask(window).repeat(1, 1, groups, 1),
            scale=scaling,
        )
        unfolded = attended.view(count, heads, length, value_dim).transpose(1, 2)
        return unfolded.reshape(count * length, heads, value_dim).index_select(0, self._grid.place)

    def _mask(self, window: int | None) -> Tensor:
        """[B, 1, T, L] bool, True: visible."""
        found = self._seen.get(window)
        if found is None:
            seen = sees(
                self._visibility.first,
                self._visibility.prefix,
                self._visibility.tail,
                self._visibility.positions,
                self._grid.members[:, :, None],
                self._rows[:, None, :],
                window,
            )
            found = (seen & (self._offsets < self._grid.lengths[:, None])[:, None, :])[:, None]
            self._seen[window] = found
        return found
