"""The target's probabilities where a verifier needs them: on the head, on the tail's tokens, elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..sampling.sums import row_sums_without
from .base import Proposal, TargetLaw


@dataclass(frozen=True, slots=True)
class Masses:
    """The target's law ``p`` at ``B`` nodes, split by how the children were made. All float64."""

    head: Tensor  # [B, K]: p of the head slots' tokens, 0 in other slots
    tail: Tensor  # [B, M]: p of the tail law's tokens, 0 where that law is 0
    outside: Tensor  # [B]: p of everything else, summed directly

    def rows(self, index: Tensor) -> Masses:
        return Masses(self.head[index], self.tail[index], self.outside[index])


def split(law: TargetLaw, proposal: Proposal) -> Masses:
    """Gather what a rule needs of ``p``, in one pass over the law and without a float64 copy of it."""
    ids, listed = listed_tokens(proposal)
    weights = torch.where(listed, law.weights.gather(1, ids).double(), 0.0)
    outside = row_sums_without(law.weights, ids, listed)
    total = outside + weights.sum(dim=1)  # no token is listed twice
    p = weights / total[:, None]
    slots = proposal.tokens.shape[1]
    return Masses(p[:, :slots], p[:, slots:], outside / total)


def listed_tokens(proposal: Proposal) -> tuple[Tensor, Tensor]:
    """Token ids [B, K + M] of head slots and tail law, and which of them are really in use (bool)."""
    slot = torch.arange(proposal.tokens.shape[1], device=proposal.tokens.device)
    in_head = (slot < proposal.num_head[:, None]) & (proposal.tokens >= 0)
    ids = torch.cat([proposal.tokens, proposal.tail_ids], dim=1).clamp(min=0)
    return ids, torch.cat([in_head, proposal.tail_probs > 0], dim=1)
