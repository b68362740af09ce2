"""Children that share: a level's slots, where all are chosen, and a slot, where equal tokens were drawn."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..verifiers.base import Proposal


def share_slots(proposal: Proposal, scores: Tensor, num_slots: int) -> tuple[Proposal, Tensor]:
    """Keep the ``num_slots`` children of each tree that have the best scores.

    proposal: of ``w`` nodes of each of ``G`` trees, up to ``K`` chosen children each, the likeliest first.
    scores: [G, w * K] float64, no child's above that of the child before it.

    Returns the proposal of those kept, and [G, num_slots] int64, ascending: their places among ``w * K``.
    """
    # Of equal ones the first: so the kept children of a node come before its others.
    places = scores.argsort(dim=1, descending=True, stable=True)[:, :num_slots].sort(dim=1).values
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, places, True).view_as(proposal.tokens)
    tokens = torch.where(kept, proposal.tokens, -1)
    return replace(proposal, tokens=tokens, num_head=(tokens >= 0).sum(dim=1)), places


def first_equal(tokens: Tensor) -> Tensor:
    """The first place in each row of ``tokens`` [F, K] with the same token: [F, K] int64."""
    equal = tokens[:, :, None] == tokens[:, None, :]
    return equal.to(torch.uint8).argmax(dim=2)
