"""Sampling parameters as tensors, one row a node; a part that no row uses is None and costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resispec.models.device import put

from ..request import SamplingParams
from .bad_words import BadWords, bad_words
from .masks import TokenMask


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
    scaled: bool  # whether some row's temperature is neither 0 nor 1
    greedy: Tensor  # [G] int64: the greedy rows
    truncation: TruncationRows | None
    penalties: PenaltyRows | None
    bias: TokenRules | None
    masked: TokenRules | None  # EOS and stop ids under min_tokens
    bad_words: tuple[BadWords, ...] = ()  # of every request that has some
    allowed: TokenMask | None = None  # at rows whose requests restrict their tokens

    @property
    def all_greedy(self) -> bool:
        return self.greedy.shape[0] == self.temperature.shape[0]

    @property
    def adjusts(self) -> bool:
        """Whether some row's logits are changed before the temperature is."""
        parts = (self.penalties, self.bias, self.masked, self.allowed)
        return bool(self.bad_words) or any(part is not None for part in parts)


def sampling_rows(
    params: Sequence[SamplingParams],
    vocab_size: int,
    eos_token_ids: Sequence[int],
    device: torch.device,
    allowed: TokenMask | None = None,
) -> SamplingRows:
    """Build the rows of a batch: ``params`` holds each node's request's parameters, node by node."""
    temperatures = [p.temperature for p in params]
    temperature = put(temperatures, device, torch.float32)
    greedy = put([i for i, t in enumerate(temperatures) if t == 0], device)
    scaled = not {0.0, 1.0}.issuperset(temperatures)
    if all(map(_is_plain, {id(p): p for p in params}.values())):
        return SamplingRows(temperature, scaled, greedy, None, None, None, None, (), allowed)
    return SamplingRows(
        temperature=temperature,
        scaled=scaled,
        greedy=greedy,
        truncation=_truncation(params, vocab_size, device),
        penalties=_penalties(params, device),
        bias=_rules(params, _bias, device),
        masked=_rules(params, lambda p: _masked(p, eos_token_ids), device),
        bad_words=bad_words(params, device),
        allowed=allowed,
    )


def is_penalised(p: SamplingParams) -> bool:
    """Whether tokens already seen count."""
    return p.presence_penalty != 0 or p.frequency_penalty != 0 or p.repetition_penalty != 1


def _is_plain(p: SamplingParams) -> bool:
    """Whether the law is the model's own at some temperature."""
    truncated = p.top_k != 0 or p.top_p != 1 or p.min_p != 0
    return not (is_penalised(p) or truncated or p.logit_bias or p.min_tokens or p.bad_words)


def _truncation(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> TruncationRows | None:
    sampled = [(i, p) for i, p in enumerate(params) if p.temperature > 0]
    cut = [(i, p) for i, p in sampled if 0 < p.top_k < vocab_size or p.top_p < 1]
    if not cut and all(p.min_p == 0 for _, p in sampled):
        return None
    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for _, p in cut]
    return TruncationRows(
        nodes=put([i for i, _ in cut], device),
        top_k=put(top_k, device),
        top_p=put([p.top_p for _, p in cut], device, torch.float64),
        min_p=put([p.min_p for p in params], device, torch.float32),
    )


def _penalties(params: Sequence[SamplingParams], device: torch.device) -> PenaltyRows | None:
    used = [(i, p) for i, p in enumerate(params) if is_penalised(p)]
    if not used:
        return None
    numbers = [[p.presence_penalty, p.frequency_penalty, p.repetition_penalty] for _, p in used]
    values = put(numbers, device, torch.float32)
    rows = tuple(i for i, _ in used)
    nodes = put(rows, device)
    return PenaltyRows(nodes, rows, values[:, 0], values[:, 1], values[:, 2])


def _bias(params: SamplingParams) -> tuple[NDArray[Any], NDArray[Any]]:
    tokens = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
    return tokens, np.array([bias for _, bias in params.logit_bias], dtype=np.float32)


def _masked(params: SamplingParams, eos_token_ids: Sequence[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    stops = {*eos_token_ids, *params.stop_token_ids} if params.min_tokens > 0 else set()
    tokens = np.array(sorted(stops), dtype=np.int64)
    return tokens, np.full(tokens.size, params.min_tokens, dtype=np.int64)


def _rules(
    params: Sequence[SamplingParams],
    rule: Callable[[SamplingParams], tuple[NDArray[Any], NDArray[Any]]],
    device: torch.device,
) -> TokenRules | None:
    """Tokens and values as ``rule`` gives them: once a request, whose rule may be long, not once a node."""
    distinct = {id(p): p for p in params}
    made = {key: rule(p) for key, p in distinct.items()}
    chosen = [made[id(p)] for p in params]
    lengths = [tokens.size for tokens, _ in chosen]
    if not any(lengths):
        return None
    return TokenRules(
        put(np.repeat(np.arange(len(params)), lengths), device),
        put(np.concatenate([tokens for tokens, _ in chosen]), device),
        put(np.concatenate([values for _, values in chosen]), device),
    )
