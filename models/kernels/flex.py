"""Attention by FlexAttention (Dong et al. 2024): every key is read in place, a tree's mask is computed.

A block of keys may belong to several requests. What a token does not see is left out of its scores, but a
value is multiplied by 0, which a NaN survives; `KVMemory.write` sees to it that values are numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from resispec.models.base import StepInputs
from resispec.models.device import device_for
from resispec.models.kv import KVMemory
from resispec.models.visibility import (
    BLOCK,
    Blocks,
    Visibility,
    block_lists,
    num_blocks,
    prefixes,
    sees,
    visibility_of,
)

_KERNELS = 32  # compiled at the most; torch's own limit of 8 is soon reached by two models with windows


class FlexAttention:
    """Of one step."""

    def __init__(self, memory: KVMemory, visibility: Visibility) -> None:
        assert visibility.blocks is not None
        self._memory = memory
        self._visibility = visibility
        self._blocks = visibility.blocks
        self._masks: dict[int | None, BlockMask] = {}
        generated = device_for(visibility.first.device).generates_kernels
        self._product = _compiled() if generated else _plain

    @classmethod
    def of(cls, memory: KVMemory, inputs: StepInputs) -> FlexAttention:
        if inputs.visibility is not None:
            return cls(memory, inputs.visibility)
        device = device_for(inputs.positions.device)
        lists = block_lists(inputs.segments, inputs.positions.shape[0], None)
        width = max(map(len, lists))
        needed = device.put([[len(blocks), *blocks, *[0] * (width - len(blocks))] for blocks in lists])
        numbers = needed.new_zeros(len(lists), 1 + num_blocks(memory.num_rows))
        numbers[:, : 1 + width] = needed
        first, prefix = device.put(list(prefixes(inputs.segments)))
        blocks = Blocks(numbers[:, 0], numbers[:, 1:])
        return cls(memory, visibility_of(inputs.segments, inputs.positions, first, prefix, blocks))

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, key dim] -> [N, query heads, value dim]."""
        keys, values = (pool.transpose(0, 1)[None] for pool in self._memory.layer(layer))
        output = self._product(
            query.transpose(0, 1)[None],
            keys,
            values,
            block_mask=self._mask(window),
            scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return output[0].transpose(0, 1)

    def _mask(self, window: int | None) -> BlockMask:
        found = self._masks.get(window)
        if found is None:
            found = BlockMask.from_kv_blocks(
                self._blocks.counts.to(torch.int32)[None, None],
                self._blocks.indices.to(torch.int32)[None, None],
                BLOCK_SIZE=(BLOCK, BLOCK),
                mask_mod=_mask_function(self._visibility, window),
                seq_lengths=(self._visibility.first.shape[0], self._memory.num_rows),
                compute_q_blocks=False,  # those are for gradients
            )
            self._masks[window] = found
        return found


def _mask_function(visibility: Visibility, window: int | None) -> Callable[..., Tensor]:
    """Who sees what, as the compiler likes it: a function that closes over tensors."""
    first, prefix = visibility.first, visibility.prefix
    tail, positions = visibility.tail, visibility.positions

    def mask(_batch: Tensor, _head: Tensor, token: Tensor, row: Tensor) -> Tensor:
        return sees(first, prefix, tail, positions, token, row, window)

    return mask


def _plain(*args: Any, **kwargs: Any) -> Tensor:
    output: Tensor = flex_attention(*args, **kwargs)
    return output


@lru_cache(1)
def _compiled() -> Callable[..., Tensor]:
    """Any number of tokens runs on the same few kernels: by model, by window, and for one or few tokens."""
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True)

    def product(*args: Any, **kwargs: Any) -> Tensor:
        with torch._dynamo.config.patch(recompile_limit=_KERNELS):
            return compiled(*args, **kwargs)

    return product
