"""Proposals at positions of a pair, several or all at each, over a vocabulary cut to what they touch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..drawing import Drawing
from ..verifiers.base import Proposal, TargetLaw
from ..verifiers.masses import split
from .ceiling import ceiling
from .proposals import Source


@dataclass(frozen=True, slots=True)
class PositionDraws:
    """``P`` proposals at each of ``count`` positions, one position's side by side."""

    law: TargetLaw  # of count * P rows
    proposal: Proposal
    weight: Tensor  # [count, P] float64: their probabilities


def renumber(law: TargetLaw, proposal: Proposal, copies: int) -> PositionDraws:
    """The same nodes over a small vocabulary: head and tail's tokens, and one token for all others.

    law: of each position; proposal: ``copies`` of each. No rule sees any difference, and rows are short.
    """
    firsts = proposal.rows(torch.arange(0, len(proposal.tokens), copies, device=law.weights.device))
    masses = split(law, firsts)
    slots, width = proposal.tokens.shape[1], proposal.tail_ids.shape[1]
    p = torch.cat([masses.head, masses.tail, masses.outside[:, None]], dim=1)
    p = p.repeat_interleave(copies, dim=0)
    slot = torch.arange(slots, device=p.device)
    in_head = slot < proposal.num_head[:, None]
    tokens = torch.where(in_head, slot, slots + proposal.tail_index)
    small = replace(
        proposal,
        tokens=torch.where(proposal.tokens >= 0, tokens, -1),
        tail_ids=(slots + torch.arange(width, device=p.device)).expand(len(p), -1),
    )
    weight = p.new_full((len(firsts.tokens), copies), 1 / copies)
    return PositionDraws(TargetLaw(p), small, weight)


def every_draw(one: PositionDraws) -> PositionDraws:
    """Every token that a tail of one draw may hold, with its probability: nothing is left to chance."""
    count, width = one.proposal.tail_probs.shape
    rows = torch.arange(count, device=one.weight.device).repeat_interleave(width)
    proposal = one.proposal.rows(rows)
    drawn = torch.arange(width, device=rows.device).repeat(count)[:, None]
    slot = proposal.num_head.clamp(max=proposal.tokens.shape[1] - 1)[:, None]
    active = (proposal.num_tail > 0)[:, None]
    tokens = torch.where(active, proposal.tail_ids.gather(1, drawn), proposal.tokens.gather(1, slot))
    proposal = replace(
        proposal,
        tokens=proposal.tokens.scatter(1, slot, tokens),
        tail_index=proposal.tail_index.scatter(1, slot, torch.where(active, drawn, 0)),
    )
    none = (one.proposal.num_tail == 0)[:, None]
    weight = torch.where(none, 1 / width, one.proposal.tail_probs)
    return PositionDraws(one.law.rows(rows), proposal, weight)


def ceilings(drawn: PositionDraws, drawing: Drawing) -> list[float]:
    """Of every position whose bound can be found."""
    count, copies = drawn.weight.shape
    bounds = [ceiling(_source(drawn.law, drawn.proposal, row * copies, drawing)) for row in range(count)]
    return [bound for bound in bounds if bound is not None]


def _source(laws: TargetLaw, proposal: Proposal, row: int, drawing: Drawing) -> Source:
    """A row's candidates, as the ceiling wants them."""
    used = proposal.tail_probs[row] > 0
    num_head = int(proposal.num_head[row])
    return Source(
        p=(laws.weights[row].double() / laws.total[row]).cpu(),
        head=tuple(proposal.tokens[row, :num_head].tolist()),
        support=tuple(proposal.tail_ids[row][used].tolist()),
        q=tuple(proposal.tail_probs[row][used].tolist()),
        num_tail=int(proposal.num_tail[row]),
        drawing=drawing,
    )
