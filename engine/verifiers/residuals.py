"""Laws of the correction token, put together over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Proposal
from .masses import listed_tokens


def with_tail_replaced(p: Tensor, proposal: Proposal, tail: Tensor) -> Tensor:
    """``p`` [B, V] with ``tail`` [B, M] on the tail's tokens and 0 on the head; ``p`` is overwritten."""
    ids, listed = listed_tokens(proposal)
    # Unused entries may name a used token; infinity and 0 leave it as it is.
    p = p.scatter_reduce_(1, ids, torch.where(listed, 0.0, torch.inf).to(p.dtype), "amin")
    slots = proposal.tokens.shape[1]
    return p.scatter_add_(1, ids[:, slots:], torch.where(listed[:, slots:], tail, 0.0))
