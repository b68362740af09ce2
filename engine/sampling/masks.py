"""Allowed tokens at some rows of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from resispec.models.device import put


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Which tokens ``N`` rows of the logits may not have."""

    nodes: Tensor  # [N] int64, ascending
    forbidden: Tensor  # [N, V] bool

    def apply_(self, logits: Tensor) -> None:
        """Set what is forbidden in ``logits`` [B, V] to -inf, in place."""
        if self.nodes.shape[0] == logits.shape[0]:
            logits.masked_fill_(self.forbidden, -torch.inf)
        else:
            logits[self.nodes] = logits[self.nodes].masked_fill_(self.forbidden, -torch.inf)


def token_mask(rows: Sequence[int], packed: Tensor, vocab_size: int) -> TokenMask:
    """packed: [N, W] uint8, the tokens allowed at ``rows``, ascending: eight ids a byte, the lowest id in
    the lowest bit.
    """
    bits = _unpacked(packed.device).index_select(0, packed.flatten().int())
    forbidden = bits.view(packed.shape[0], -1).view(torch.bool)[:, :vocab_size]
    return TokenMask(put(rows, packed.device), forbidden)


@lru_cache(maxsize=8)
def _unpacked(device: torch.device) -> Tensor:
    """[256] int64: for every byte, the eight flags of its clear bits, which a gather moves as one number."""
    byte = torch.arange(256, device=device)[:, None]
    clear = (byte >> torch.arange(8, device=device)) & 1 == 0
    return clear.view(torch.int64).flatten()
