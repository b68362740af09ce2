"""From the target's logits to its law at every node.

Order: penalties, ``logit_bias``, the ``min_tokens`` mask, bad words, allowed tokens, temperature,
``top_k``, ``top_p``, ``min_p``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.models.device import device_for

from ..native import kernels_for
from ..verifiers.base import TargetLaw
from .penalties import SeenTokens, penalise_
from .rows import SamplingRows, TokenRules, TruncationRows
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


def target_law(
    logits: Tensor, rows: SamplingRows, context: NodeContext | None = None, nodes: Tensor | None = None
) -> NodeLaws:
    """The processed law at ``B`` nodes: ``softmax(logits / temperature)``, truncated.

    logits: [N, V] float32, left as they are. nodes: [B] int64, the rows of them that are meant; None: all.
    Greedy rows are one-hot at the largest logit, the lowest id on ties. Raises ValueError if a row's
    parameters look at its path and ``context`` is missing.
    """
    kernels = kernels_for(logits.device)
    if kernels is not None:
        chosen, nodes = _chosen(logits, rows, context, nodes)
        weights, bad = kernels.laws(chosen, nodes, temperatures(rows))
        if rows.truncation is not None:
            _truncate(weights, rows.truncation)
        return NodeLaws(TargetLaw(weights), bad)
    picked = logits.clone() if nodes is None else logits.index_select(0, nodes)
    if rows.adjusts:
        picked = adjusted_logits(picked, rows, context)
    if rows.all_greedy:
        weights, bad = _one_hot(picked)
    else:
        token = picked[rows.greedy].argmax(dim=1)
        weights = _softmax(picked, rows.temperature if rows.scaled else None)
        bad = weights[:, 0].isnan()  # as all of the row then is
        if rows.truncation is not None:
            _truncate(weights, rows.truncation)
        if rows.greedy.shape[0] > 0:
            weights.index_fill_(0, rows.greedy, 0.0)
            weights[rows.greedy, token] = 1.0
    if not device_for(logits.device).reads_freely or bool(bad.any()):
        weights.masked_fill_(bad[:, None], 0.0)
        weights[:, 0] += bad  # some law, so that nothing downstream divides by 0
    return NodeLaws(TargetLaw(weights), bad)


def greedy_tokens(
    logits: Tensor, rows: SamplingRows, context: NodeContext | None = None, nodes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The tokens [B] int64 that `target_law` leaves no choice but to draw, and its ``bad``: no law is made.

    logits, nodes: as there; all ``rows`` are greedy. Raises ValueError as `target_law` does.
    """
    kernels = kernels_for(logits.device)
    if kernels is not None:
        return kernels.largest(*_chosen(logits, rows, context, nodes))
    picked = logits if nodes is None else logits.index_select(0, nodes)
    token, bad = _largest(adjusted_logits(picked, rows, context))
    return token[:, 0], bad


def _chosen(
    logits: Tensor, rows: SamplingRows, context: NodeContext | None, nodes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Adjusted logits and which of their rows are meant, copied only where they are adjusted."""
    if rows.adjusts and nodes is not None:
        logits, nodes = logits.index_select(0, nodes), None
    if nodes is None:
        nodes = torch.arange(len(logits), device=logits.device)
    return adjusted_logits(logits, rows, context), nodes


def _one_hot(picked: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [B, V] in place of the logits, and which rows of these are no numbers: [B] bool."""
    token, bad = _largest(picked)
    return picked.zero_().scatter_(1, token, 1.0), bad


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit's token in every row of [B, V], [B, 1] int64; and whether it is no number: [B]."""
    token = logits.argmax(dim=1, keepdim=True)
    return token, ~logits.gather(1, token)[:, 0].isfinite()


def _softmax(picked: Tensor, temperature: Tensor | None) -> Tensor:
    """[B, V]; NaN all over rows that are not finite. temperature: [B]; None: 1 everywhere.

    picked: [B, V] logits, overwritten.
    """
    if temperature is not None:
        picked.sub_(picked.amax(dim=1, keepdim=True)).div_(_within_float32(temperature)[:, None])
    return torch.softmax(picked, dim=1)


def temperatures(rows: SamplingRows) -> Tensor:
    """As the kernels take them, [B] float32: 0 in greedy rows and in no others."""
    if not rows.scaled:
        return rows.temperature
    return _within_float32(rows.temperature).index_fill_(0, rows.greedy, 0.0)


def _within_float32(temperature: Tensor) -> Tensor:
    """One that float32 holds as 0 or infinity would make NaN of the largest or of a masked logit."""
    limits = torch.finfo(torch.float32)
    return temperature.clamp(limits.tiny, limits.max)


def adjusted_logits(logits: Tensor, rows: SamplingRows, context: NodeContext | None) -> Tensor:
    """Logits after penalties, ``logit_bias`` and the masks; the same tensor if none is used."""
    if not rows.adjusts:
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
    """Zero in place what each row's cutoff drops."""
    cutoff = rows.min_p * weights.amax(dim=1)
    if rows.nodes.shape[0] > 0:
        chosen = weights if rows.nodes.shape[0] == weights.shape[0] else weights[rows.nodes]
        found = truncation_cutoff(chosen, rows.top_k, rows.top_p)
        cutoff[rows.nodes] = torch.maximum(cutoff[rows.nodes], found)
    weights.mul_(weights >= cutoff[:, None])
