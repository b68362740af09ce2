"""The children of tree nodes: the draft's best tokens, then independent draws from the rest of its law."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..drawing import Drawing
from ..verifiers.base import Proposal


@dataclass(frozen=True, slots=True)
class Truncation:
    """The request's own truncation, per row, applied to the draft's law as well. ``None``: off for all."""

    top_k: Tensor | None = None  # [F] int64; 0: off
    top_p: Tensor | None = None  # [F] float; 1: off
    min_p: Tensor | None = None  # [F] float; 0: off


@dataclass(frozen=True, slots=True)
class Ranked:
    """The draft's best tokens at ``F`` nodes, from the most likely down; ``C`` of them."""

    ids: Tensor  # [F, C] int64, the target's
    weights: Tensor  # [F, C] float64: the draft's law times a factor; 0 where nothing may be proposed
    law_weights: Tensor  # [F, C] float64: the same after truncation, for draws
    usable: Tensor  # [F, C] bool: may be a head child; usable ones come first
    log_law: Tensor  # [F, C] float64: log-probability, if there were only the best tokens

    def without(self, tokens: Tensor) -> Ranked:
        """The others first, in their order; ``tokens`` ([F, S] int64, -1: none) may not be proposed."""
        excluded = (self.ids[:, :, None] == tokens[:, None, :]).any(dim=2)
        order = excluded.to(torch.uint8).argsort(dim=1, stable=True)
        kept = ~excluded.gather(1, order)
        return Ranked(
            self.ids.gather(1, order),
            self.weights.gather(1, order) * kept,
            self.law_weights.gather(1, order) * kept,
            self.usable.gather(1, order) & kept,
            self.log_law.gather(1, order),
        )

    def log_probs(self, tokens: Tensor) -> Tensor:
        """Of ``tokens`` [F, S]: [F, S] float64, -inf for those that are not among these."""
        equal = self.ids[:, :, None] == tokens[:, None, :]
        return torch.where(equal, self.log_law[:, :, None], -torch.inf).amax(dim=1)


def rank(
    draft_logits: Tensor,
    temperature: Tensor,
    num_tokens: int,
    vocab_ids: Tensor | None = None,
    truncation: Truncation | None = None,
    num_spare: int = 0,
) -> Ranked:
    """The ``num_tokens`` best tokens of ``F`` nodes, or all there are. See `propose` for the rest.

    num_spare: further tokens, to be there in the place of excluded ones. How many does not change what
    is known of the others, since it may depend on a request's company.
    """
    best, ids = draft_logits.topk(min(draft_logits.shape[1], num_tokens + num_spare), dim=1)
    best = best.double()
    usable = best > -torch.inf
    usable &= best[:, :1].isfinite()  # NaN sorts first
    scaled = (best - best[:, :1]) / torch.where(temperature <= 0, 1.0, temperature.double())[:, None]
    weights = torch.where(usable, scaled.exp(), 0.0)
    total = weights[:, :num_tokens].sum(dim=1, keepdim=True)
    return Ranked(
        ids if vocab_ids is None else vocab_ids[ids],
        weights,
        weights if truncation is None else weights * _kept(weights, truncation, num_tokens),
        usable,
        # Of a row without usable tokens every share is 0.
        (weights / total.clamp_min(torch.finfo(weights.dtype).tiny)).log(),
    )


def propose(
    draft_logits: Tensor,
    temperature: Tensor,
    num_head: Tensor,
    num_tail: Tensor,
    num_slots: int,
    num_tail_tokens: int,
    uniforms: Tensor,
    vocab_ids: Tensor | None = None,
    truncation: Truncation | None = None,
    max_tail: int | None = None,
    drawing: Drawing = Drawing.HEAD_AND_TAIL,
) -> tuple[Proposal, Tensor]:
    """Choose up to ``K = num_slots`` children for each of ``F`` nodes.

    The head is the draft's top ``num_head`` tokens. The tail's law is the draft's at the request's
    temperature, without the head, cut to its ``M = num_tail_tokens`` largest tokens and renormalised in
    float64; the draws are made from exactly these numbers, each of them from what earlier ones left of it
    if ``drawing`` is without replacement. Greedy rows (temperature 0) get head slots
    only. A row may get fewer children than asked for: no token is proposed that the draft excludes,
    and a tail whose law is empty, or a row that is not finite, proposes nothing.

    draft_logits: [F, Vd] float32. temperature: [F]. num_head, num_tail: [F] int64, together at most K.
    uniforms: [F, K] float64 in [0, 1), fresh. ``M = 0``: no row has a tail.
    vocab_ids: [Vd] int64, the target's id of every draft token; None: the same. max_tail: see `Proposal`.
    drawing: what the rows are, for the verifier.

    Returns the proposal and [F, K] float64, each child's log-probability in the draft's law over its
    ``K + M`` best tokens, for scoring trees; -inf in inert slots.
    """
    ranked = rank(draft_logits, temperature, num_slots + num_tail_tokens, vocab_ids, truncation)
    return propose_ranked(
        ranked, temperature, num_head, num_tail, num_slots, num_tail_tokens, uniforms, max_tail, drawing
    )


def propose_ranked(
    ranked: Ranked,
    temperature: Tensor,
    num_head: Tensor,
    num_tail: Tensor,
    num_slots: int,
    num_tail_tokens: int,
    uniforms: Tensor,
    max_tail: int | None = None,
    drawing: Drawing = Drawing.HEAD_AND_TAIL,
) -> tuple[Proposal, Tensor]:
    """`propose`, from tokens that are ranked already."""
    ids = ranked.ids
    greedy = temperature <= 0
    num_head = torch.where(greedy, num_head + num_tail, num_head)
    num_tail = torch.where(greedy, 0, num_tail)
    num_head = torch.minimum(num_head, ranked.usable.sum(dim=1))

    place = torch.arange(num_tail_tokens, device=ids.device) + num_head[:, None]
    in_range = (place < ids.shape[1]) & (num_tail > 0)[:, None]
    place = place.clamp(max=ids.shape[1] - 1)
    tail = torch.where(in_range, ranked.law_weights.gather(1, place), 0.0)
    total = tail.sum(dim=1, keepdim=True)
    tail_probs = torch.where(total > 0, tail / total, 0.0)
    num_tail = torch.where(total[:, 0] > 0, num_tail, 0)
    distinct = drawing is Drawing.WITHOUT_REPLACEMENT
    if distinct:
        num_tail = torch.minimum(num_tail, (tail_probs > 0).sum(dim=1))

    slot = torch.arange(num_slots, device=ids.device)
    in_head = slot < num_head[:, None]
    in_tail = ~in_head & (slot < (num_head + num_tail)[:, None])
    index = _draw_distinct(tail_probs, uniforms, in_tail) if distinct else _draw_slots(tail_probs, uniforms)
    index = torch.where(in_tail, index, 0)
    head_place = slot.clamp(max=ids.shape[1] - 1).expand_as(index)
    child_place = torch.where(in_tail, place.gather(1, index), head_place) if num_tail_tokens else head_place
    active = in_head | in_tail
    proposal = Proposal(
        tokens=torch.where(active, ids.gather(1, child_place), -1),
        num_head=num_head,
        num_tail=num_tail,
        tail_ids=ids.gather(1, place),
        tail_probs=tail_probs,
        tail_index=index,
        max_tail=max_tail,
        drawings=frozenset({drawing}),
    )
    return proposal, torch.where(active, ranked.log_law.gather(1, child_place), -torch.inf)


def _draw_slots(tail_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Indices [F, K] into the tail's law, each slot's drawn with its own uniform; never of probability 0."""
    if tail_probs.shape[1] == 0:
        return torch.zeros_like(uniforms, dtype=torch.int64)
    cumulative = tail_probs.cumsum(dim=1)
    index = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return index.clamp(max=tail_probs.shape[1] - 1)


def _draw_distinct(tail_probs: Tensor, uniforms: Tensor, in_tail: Tensor) -> Tensor:
    """Like `_draw_slots`; what a tail slot ([F, K] bool) has drawn, no later one of its row draws again."""
    columns = []
    for slot in range(uniforms.shape[1]):
        drawn = _draw_slots(tail_probs, uniforms[:, slot : slot + 1])
        columns.append(drawn)
        if tail_probs.shape[1]:
            taken = tail_probs.scatter(1, drawn, 0.0)
            tail_probs = torch.where(in_tail[:, slot : slot + 1], taken, tail_probs)
    return torch.cat(columns, dim=1)


def _kept(weights: Tensor, truncation: Truncation, num_tokens: int) -> Tensor:
    """Which of the ``weights`` [F, C], sorted from the largest (which is 1) down, the truncation keeps.

    Shares are of the first ``num_tokens``.
    """
    keep = torch.ones_like(weights, dtype=torch.bool)
    if truncation.top_k is not None:
        rank = torch.arange(weights.shape[1], device=weights.device)
        top_k = truncation.top_k[:, None]
        keep &= (rank < top_k) | (top_k <= 0)
    if truncation.top_p is not None:
        kept = weights * keep
        before = kept.cumsum(dim=1) - kept
        top_p = truncation.top_p[:, None]
        keep &= (before < top_p * kept[:, :num_tokens].sum(dim=1, keepdim=True)) | (top_p >= 1)
    if truncation.min_p is not None:
        keep &= weights >= truncation.min_p[:, None]
    return keep
