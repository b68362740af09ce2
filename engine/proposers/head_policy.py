"""How many of a node's children are chosen, and how many are drawn.

A chosen token is met by the target with all of its probability; a draw is worth what the laws of draft and
target have in common, but two draws of one token are worth hardly more than one. So a token is chosen where
it would come up anyway: going down from the most likely, where the draws of all slots left would more likely
than not hold it. That needs no constant to tune, and looks at nothing but the draft's law before the draws.
docs/trees.md compares it with every fixed choice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..tree import Level
from .children import Ranked


def split_children(level: Level, ranked: Ranked, num_tokens: int) -> tuple[Tensor, Tensor]:
    """How many children of each of ``F`` nodes are chosen, and how many drawn: [F] int64 each.

    num_tokens: of the ranked ones, how many are looked at; what else is ranked may depend on the company.
    """
    num_head = torch.full_like(ranked.usable[:, 0], level.num_head, dtype=torch.int64)
    if level.adaptive:
        num_head += num_chosen(ranked.law_weights[:, :num_tokens], level.num_tail)
    return num_head, level.num_children - num_head


def num_chosen(weights: Tensor, num_children: int) -> Tensor:
    """How many of the ``num_children`` are chosen at each of ``F`` nodes: [F] int64, at least one is drawn.

    The most likely token not yet chosen has the share ``s`` of what is left of the law, and is chosen while
    ``1 - (1 - s)^k >= 1/2`` for the ``k`` slots left.

    weights: [F, C] float64, the draft's law times a factor, from the most likely token down.
    """
    places = min(num_children - 1, weights.shape[1])
    left = weights.flip(1).cumsum(1).flip(1)[:, :places]  # summed, so that nothing left is 0
    share = torch.where(left > 0, weights[:, :places] / left, 1.0)
    slots = num_children - torch.arange(places, device=weights.device)
    comes_up = 1 - (1 - share) ** slots >= 0.5
    return comes_up.long().cumprod(dim=1).sum(dim=1)
