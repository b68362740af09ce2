"""From the target's logits to its law at every node.

Order: penalties, ``logit_bias``, the ``min_tokens`` mask, bad words, allowed tokens, temperature,
``top_k``, ``top_p``, ``min_p``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.models.device import device_for

from ..verifiers.base import TargetLaw
from .penalties import SeenTokens, penalise_
from .rows import SamplingRows, TokenRules, TruncationRows
from .sums import row_sums
from .truncation import truncation_cutoff


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the law at ``B`` nodes depends on beside the logits."""

    path: Tensor  # [B, D] int64: draft tokens from the root's first child down to the node; -1: none
    num_output: Tensor  # [B] int64: committed output tokens of the node's request
    seen: SeenTokens | None = None  # a row for each of `SamplingRows.penalties`
    recent: Tensor | None = None  # [B, H] int64: output up to the node, for bad words; -1: none


@dataclass(frozen=True, slots=True)
class NodeLaws:
    law: TargetLaw
    bad: Tensor  # [B] bool: logits with NaN or +inf, or nothing finite; the law there means nothing


def target_law(logits: Tensor, rows: SamplingRows, context: NodeContext | None = None) -> NodeLaws:
    """The processed law at ``B`` nodes: ``exp((logit - max) / temperature)``, truncated.

    logits: [B, V] float32, left as they are. Greedy rows are one-hot at the largest logit, the lowest
    id on ties. Raises ValueError if a row's parameters look at its path and ``context`` is missing.
    """
    return target_law_(logits.clone(), rows, context)


def target_law_(logits: Tensor, rows: SamplingRows, context: NodeContext | None = None) -> NodeLaws:
    """`target_law` in the memory of the ``logits``: their last use."""
    logits = adjusted_logits(logits, rows, context)
    if rows.greedy.shape[0] == logits.shape[0]:
        best, token = logits.amax(dim=1), logits.argmax(dim=1)
        weights = logits.zero_().scatter_(1, token[:, None], 1.0)
    else:
        token = logits[rows.greedy].argmax(dim=1)
        best, weights = _exponentiate_(logits, rows.temperature)
        if rows.truncation is not None:
            _truncate(weights, rows.truncation)
        if rows.greedy.shape[0] > 0:
            weights.index_fill_(0, rows.greedy, 0.0)
            weights[rows.greedy, token] = 1.0
    bad = ~best.isfinite()
    if not device_for(logits.device).reads_freely or bool(bad.any()):
        weights.masked_fill_(bad[:, None], 0.0)
        weights[:, 0] += bad  # some law, so that nothing downstream divides by 0
    return NodeLaws(TargetLaw(weights, row_sums(weights)), bad)


def _exponentiate_(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's largest logit, [B], and ``exp((logit - largest) / temperature)`` in place of the logits."""
    # A temperature that float32 holds as 0 or infinity would make NaN of the largest or of a masked logit.
    limits = torch.finfo(torch.float32)
    scale = temperature.clamp(limits.tiny, limits.max)[:, None]
    best = logits.amax(dim=1, keepdim=True)
    return best[:, 0], logits.sub_(best).div_(scale).exp_()


def adjusted_logits(logits: Tensor, rows: SamplingRows, context: NodeContext | None) -> Tensor:
    """Logits after penalties, ``logit_bias`` and the masks; the same tensor if none is used."""
    plain = rows.penalties is None and rows.bias is None and rows.masked is None
    if plain and not rows.bad_words and rows.allowed is None:
        return logits
    logits = logits.clone()
    if rows.penalties is not None:
        if context is None or context.seen is None:
            raise ValueError("penalties need the tokens each request has seen")
        used = rows.penalties
        path = context.path[used.nodes]
        penalise_(logits, used.nodes, context.seen, path, used.presence, used.frequency, used.repetition)
    if rows.bias is not None:
        logits.index_put_((rows.bias.nodes, rows.bias.tokens), rows.bias.values, accumulate=True)
    if rows.masked is not None:
        if context is None:
            raise ValueError("min_tokens needs the length of each node's output")
        _mask(logits, rows.masked, context)
    if rows.bad_words:
        if context is None or context.recent is None:
            raise ValueError("bad words need the tokens before each node")
        for words in rows.bad_words:
            words.forbid_(logits, context.recent)
    if rows.allowed is not None:
        rows.allowed.apply_(logits)
    return logits


def _mask(logits: Tensor, masked: TokenRules, context: NodeContext) -> None:
    length = context.num_output + (context.path >= 0).sum(dim=1)  # output tokens before this position
    where = (masked.nodes, masked.tokens)
    early = length[masked.nodes] < masked.values
    logits.index_put_(where, torch.where(early, -torch.inf, logits[where]))


def _truncate(weights: Tensor, rows: TruncationRows) -> None:
    """Zero in place what each row's cutoff drops. The largest weight of a row is 1."""
    cutoff = rows.min_p.clone()
    if rows.nodes.shape[0] > 0:
        chosen = weights if rows.nodes.shape[0] == weights.shape[0] else weights[rows.nodes]
        found = truncation_cutoff(chosen, rows.top_k, rows.top_p)
        cutoff[rows.nodes] = torch.maximum(cutoff[rows.nodes], found)
    weights.mul_(weights >= cutoff[:, None])
