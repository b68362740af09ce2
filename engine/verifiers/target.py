"""Draw from the target, keep the token if it is a child: exact for any proposal, drafted or not."""

from __future__ import annotations

import torch

from ..drawing import Drawing
from ..sampling.draw import Residual
from .base import Decision, Proposal, TargetLaw
from .resispec import ResiSpecVerifier
from .trials import NodeRule, Trials


class TargetVerifier(NodeRule):
    """Looks at which tokens are children and never at how they were made.

    That is residual shaping without a tail, so every child is treated as one of the head. Of equal
    children the first is kept.
    """

    name = "target"
    drawing = Drawing.HEAD
    fits = frozenset(Drawing)

    def __init__(self) -> None:
        self._rule = ResiSpecVerifier()

    def num_uniforms(self, num_slots: int) -> int:
        return min(num_slots, 1)

    def trials(self, law: TargetLaw, proposal: Proposal) -> Trials:
        return self._rule.trials(law, _as_head(proposal))

    def residual(self, law: TargetLaw, proposal: Proposal, decision: Decision) -> Residual:
        return self._rule.residual(law, _as_head(proposal), decision)


def _as_head(proposal: Proposal) -> Proposal:
    """The same children as a head of distinct tokens; repeats become inert."""
    tokens = proposal.tokens
    num_children = proposal.num_head + proposal.num_tail
    slot = torch.arange(tokens.shape[1], device=tokens.device)
    repeats = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(dim=2)
    active = (slot < num_children[:, None]) & ~repeats
    return Proposal(
        tokens=torch.where(active, tokens, -1),
        num_head=num_children,
        num_tail=torch.zeros_like(num_children),
        tail_ids=proposal.tail_ids[:, :0],
        tail_probs=proposal.tail_probs[:, :0],
        tail_index=torch.zeros_like(tokens),
        drawings=frozenset({Drawing.HEAD}),
    )
