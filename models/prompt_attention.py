r"""Causal attention of a prompt's chunk on a CPU: block after block of queries, each over what it sees.

::

    rows      context        chunk
    block 1   ############## #\
    block 2   ############## ##\          a block's scores end at its own last token,
    block 3   ############## ###\         so half of the chunk's square is never made

torch's fused kernel makes the masked half too, and takes half as long again for the rest as two batched
products with a softmax between them (docs/performance.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_TOKENS, LEAST_ROWS = 32, 256  # of a chunk and of its context: below, one fused call is quicker
_BLOCK = 128  # tokens of a block, at most
_SCORES = 1 << 22  # of a block over all heads, at most: they pass through the caches three times


def can_attend_in_blocks(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `PromptAttention` is the quicker way here."""
    return device.type == "cpu" and dtype in (torch.bfloat16, torch.float32)


class PromptAttention:
    """``softmax(scale Q K^T) V`` with the query heads of a KV head folded into the query axis.

    Scores are rounded to the model's dtype before the softmax, which itself works in float32. Keeps the
    memory of the scores from layer to layer: fresh pages cost as much as the products.
    """

    def __init__(self) -> None:
        self._scores = torch.empty(0)
        self._future: dict[tuple[int, int], Tensor] = {}

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Of the last tokens of a context.

        query: [L, heads, key dim]; keys: [kv heads, T, key dim]; values: [kv heads, T, value dim], where
        query ``i`` sees the first ``T - L + i + 1`` rows. Returns [L, heads, value dim].
        """
        length, heads, key_dim = query.shape
        kv_heads, total, value_dim = values.shape
        groups = heads // kv_heads
        folded = query.view(length, kv_heads, groups, key_dim).transpose(0, 1).reshape(kv_heads, -1, key_dim)
        output = query.new_empty(kv_heads, length * groups, value_dim)
        keys = keys.transpose(1, 2)
        block = min(_BLOCK, max(LEAST_TOKENS, _SCORES // (heads * total)))
        for start in range(0, length, block):
            count = min(block, length - start)
            seen = total - length + start + count
            rows = slice(start * groups, (start + count) * groups)
            scores = self._memory(query.dtype, kv_heads, count * groups, seen)
            scores.baddbmm_(folded[:, rows], keys[:, :, :seen], beta=0, alpha=scaling)
            scores[..., seen - count :].add_(self._mask(count, groups, query.dtype))
            torch.softmax(scores, -1, out=scores)
            torch.bmm(scores, values[:, :seen], out=output[:, rows])
        unfolded = output.view(kv_heads, length, groups, value_dim).transpose(0, 1)
        return unfolded.reshape(length, heads, value_dim)

    def _memory(self, dtype: torch.dtype, *shape: int) -> Tensor:
        size = shape[0] * shape[1] * shape[2]
        if self._scores.numel() < size or self._scores.dtype is not dtype:
            self._scores = torch.empty(size, dtype=dtype)
        return self._scores[:size].view(shape)

    def _mask(self, count: int, groups: int, dtype: torch.dtype) -> Tensor:
        """[count * groups, count]: -inf where a row of a block would see a later token of it."""
        mask = self._future.get((count, groups))
        if mask is None:
            mask = torch.full((count, count), float("-inf"), dtype=dtype).triu(1)
            mask = self._future[count, groups] = mask.repeat_interleave(groups, 0)
        return mask
