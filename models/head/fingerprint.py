"""Telling the one target a head was trained for from all others."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from ..base import ModelError
from .config import HeadConfig, TargetFingerprint

_ROWS = 16
_TOLERANCE = 0.02  # of a row's length: above the rounding of 16 and 8 bit weights, below another model's


def fingerprint(target: Any, tokenizer: Any, name: str) -> TargetFingerprint:
    """The marks of a transformers causal model and its tokenizer; ``name`` is for messages."""
    matrix = _output_matrix(target)
    return TargetFingerprint(
        name=name,
        vocab_size=matrix.shape[0],
        hidden_size=matrix.shape[1],
        tokenizer_hash=_tokenizer_hash(tokenizer),
        output_sketch=tuple(round(value, 6) for value in _sketch(_sampled_rows(matrix)).tolist()),
    )


def check_head(config: HeadConfig, target: Any, tokenizer: Any) -> None:
    """Raise ModelError unless the head was trained for this target and this tokenizer.

    A head for another target would not make answers wrong, only slow, and nobody would know why.
    """
    wanted, matrix = config.target, _output_matrix(target)
    for what, was, is_now in (
        ("vocabulary", wanted.vocab_size, matrix.shape[0]),
        ("hidden size", wanted.hidden_size, matrix.shape[1]),
    ):
        if was != is_now:
            raise ModelError(_mismatch(wanted.name, f"its target's {what} is {was}, this one's {is_now}"))
    if wanted.tokenizer_hash != _tokenizer_hash(tokenizer):
        raise ModelError(_mismatch(wanted.name, "the tokenizer's vocabulary is another one"))
    rows = _sampled_rows(matrix)
    difference = (_sketch(rows) - torch.tensor(wanted.output_sketch, dtype=torch.float64)).abs()
    if bool((difference > _TOLERANCE * rows.norm(dim=-1)).any()):
        raise ModelError(_mismatch(wanted.name, "the output matrix holds other weights"))


def _mismatch(name: str, why: str) -> str:
    return f"this draft head belongs to {name}: {why}. Train one for this target with `resispec distill`"


def _output_matrix(target: Any) -> Tensor:
    layer = target.get_output_embeddings()
    if layer is None or not isinstance(getattr(layer, "weight", None), Tensor):
        raise ModelError(f"{type(target).__name__} shows no output matrix, so no draft head can use it")
    matrix: Tensor = layer.weight
    return matrix.detach()


def _sampled_rows(matrix: Tensor) -> Tensor:
    chosen = torch.linspace(0, matrix.shape[0] - 1, _ROWS).round().long()
    return matrix[chosen.to(matrix.device)].to(device="cpu", dtype=torch.float64)


def _sketch(rows: Tensor) -> Tensor:
    """One projection of each row, ``[rows, H] -> [rows]``: as good as a hash, yet blind to rounding."""
    direction = torch.arange(rows.shape[1], dtype=torch.float64).cos()
    return rows @ direction


def _tokenizer_hash(tokenizer: Any) -> str:
    vocabulary = sorted((int(token_id), token) for token, token_id in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()
