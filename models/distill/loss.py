"""How far the draft's laws are from the target's, with the gradient in one pass.

Logits of 8192 tokens for thousands of positions do not fit in a cache, let alone those of all passes with
their gradients. So positions are taken in small groups, and each group's gradient is formed at once,
while its logits are warm; nothing but the gradient of the states is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_GROUP = 256  # positions at a time


def draft_loss(
    drafted: Tensor, hidden: Tensor, output_rows: Tensor, weights: Tensor, tv_share: float
) -> Tensor:
    """Mean loss of the draft's states against the target's.

    ``drafted [S, M, H]``: the draft's states of ``S`` passes at ``M`` positions; ``hidden [M, H]``: the
    target's there; ``output_rows [V, H]``: the target's output matrix, draft vocabulary only;
    ``weights [S]`` sum to 1. With ``p`` the target's law cut to those rows and renormalised and ``q`` the
    draft's, a position costs ``(1 - tv_share) * -sum p log q + tv_share * (1 - sum min(p, q))``: cross
    entropy learns fast, the second term is the rejection probability of speculative sampling itself.
    Float32 scalar; the gradient reaches ``drafted`` only.
    """
    loss: Tensor = _DraftLoss.apply(drafted, hidden, output_rows, weights, tv_share)  # type: ignore[no-untyped-call]
    return loss


class _DraftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, drafted: Tensor, hidden: Tensor, output_rows: Tensor, weights: Tensor, tv_share: float
    ) -> Tensor:
        gradient = torch.empty_like(drafted)
        total = torch.zeros((), dtype=torch.float32, device=drafted.device)
        for start in range(0, hidden.shape[0], _GROUP):
            part = slice(start, start + _GROUP)
            p = (hidden[part] @ output_rows.T).float().softmax(dim=-1)
            for number, weight in enumerate(weights.tolist()):
                log_q = (drafted[number, part] @ output_rows.T).float().log_softmax(dim=-1)
                q = log_q.exp()
                loss, slope = _cross_entropy(p, q, log_q)
                if tv_share:
                    tv_loss, tv_slope = _total_variation(p, q)
                    loss = (1 - tv_share) * loss + tv_share * tv_loss
                    slope = (1 - tv_share) * slope + tv_share * tv_slope
                total += weight * loss.sum()
                scaled = (slope * (weight / hidden.shape[0])).to(output_rows.dtype)
                gradient[number, part] = (scaled @ output_rows).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total / hidden.shape[0]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None, None


def _cross_entropy(p: Tensor, q: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Loss ``[M]`` and its slope in the logits ``[M, V]``."""
    return -(p * log_q).sum(dim=-1), q - p


def _total_variation(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """``1 - sum min(p, q)`` ``[M]`` and its slope in the logits: ``q (sum of q where q < p - [q < p])``."""
    under = (q < p).to(q.dtype)
    return 1 - torch.minimum(p, q).sum(dim=-1), q * ((q * under).sum(dim=-1, keepdim=True) - under)
