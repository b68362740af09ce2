"""Sampling parameters as tensors, one row a node; a part that no row uses is None and costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..request import SamplingParams


@dataclass(frozen=True, slots=True)
class TruncationRows:
    """Rows that use top_k or top_p (``S`` of them), and min_p for all rows."""

    nodes: Tensor  # [S] int64
    top_k: Tensor  # [S] int64, V where off
    top_p: Tensor  # [S] float64
    min_p: Tensor  # [B] float32


@dataclass(frozen=True, slots=True)
class PenaltyRows:
    """The ``P`` rows that use a penalty."""

    nodes: Tensor  # [P] int64
    rows: tuple[int, ...]  # the same on the host, for gathering what the requests have seen
    presence: Tensor  # [P] float32
    frequency: Tensor  # [P] float32
    repetition: Tensor  # [P] float32


@dataclass(frozen=True, slots=True)
class TokenRules:
    """(row, token, value) triples over all rows: logit biases, or tokens masked for ``value`` tokens."""

    nodes: Tensor  # [N] int64
    tokens: Tensor  # [N] int64
    values: Tensor  # [N] float32, a bias; or int64, the output length from which the token is allowed


@dataclass(frozen=True, slots=True)
class SamplingRows:
    temperature: Tensor  # [B] float32, 0: greedy
    greedy: Tensor  # [G] int64: the greedy rows
    truncation: TruncationRows | None
    penalties: PenaltyRows | None
    bias: TokenRules | None
    masked: TokenRules | None  # EOS and stop ids under min_tokens


def sampling_rows(
    params: Sequence[SamplingParams],
    vocab_size: int,
    eos_token_ids: Sequence[int],
    device: torch.device,
) -> SamplingRows:
    """Build the rows of a batch: ``params`` holds each node's request's parameters, node by node."""
    temperatures = [p.temperature for p in params]
    return SamplingRows(
        temperature=torch.tensor(temperatures, dtype=torch.float32, device=device),
        greedy=torch.tensor(
            [i for i, t in enumerate(temperatures) if t == 0], dtype=torch.int64, device=device
        ),
        truncation=_truncation(params, vocab_size, device),
        penalties=_penalties(params, device),
        bias=_rules(
            [(i, t, b) for i, p in enumerate(params) for t, b in p.logit_bias], torch.float32, device
        ),
        masked=_rules(
            [
                (i, token, p.min_tokens)
                for i, p in enumerate(params)
                if p.min_tokens > 0
                for token in sorted({*eos_token_ids, *p.stop_token_ids})
            ],
            torch.int64,
            device,
        ),
    )


def _truncation(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> TruncationRows | None:
    sampled = [(i, p) for i, p in enumerate(params) if p.temperature > 0]
    cut = [(i, p) for i, p in sampled if 0 < p.top_k < vocab_size or p.top_p < 1]
    if not cut and all(p.min_p == 0 for _, p in sampled):
        return None
    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for _, p in cut]
    return TruncationRows(
        nodes=torch.tensor([i for i, _ in cut], dtype=torch.int64, device=device),
        top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
        top_p=torch.tensor([p.top_p for _, p in cut], dtype=torch.float64, device=device),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
    )


def _penalties(params: Sequence[SamplingParams], device: torch.device) -> PenaltyRows | None:
    used = [
        (i, p)
        for i, p in enumerate(params)
        if p.presence_penalty != 0 or p.frequency_penalty != 0 or p.repetition_penalty != 1
    ]
    if not used:
        return None
    values = torch.tensor(
        [[p.presence_penalty, p.frequency_penalty, p.repetition_penalty] for _, p in used],
        dtype=torch.float32,
        device=device,
    )
    rows = tuple(i for i, _ in used)
    nodes = torch.tensor(rows, dtype=torch.int64, device=device)
    return PenaltyRows(nodes, rows, values[:, 0], values[:, 1], values[:, 2])


def _rules(
    triples: Sequence[tuple[int, int, float]], dtype: torch.dtype, device: torch.device
) -> TokenRules | None:
    if not triples:
        return None
    nodes, tokens, values = zip(*triples, strict=True)
    return TokenRules(
        torch.tensor(nodes, dtype=torch.int64, device=device),
        torch.tensor(tokens, dtype=torch.int64, device=device),
        torch.tensor(values, dtype=dtype, device=device),
    )
