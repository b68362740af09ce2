"""Stored texts as padded batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .features import FeatureStore


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded at the right."""

    tokens: Tensor  # [B, N] int64
    hidden: Tensor  # [B, N, H]
    learned: Tensor  # [B, N] bool: the token after this position is an output token
    layers: Tensor | None = None  # [B, N, K * H], where the store has them


def batch_plan(store: FeatureStore, budget: int, seed: int) -> list[list[int]]:
    """Lists of documents, at most ``budget`` padded tokens each (one document at least), in an order drawn
    from ``seed``. Lengths are alike within a batch, and which documents meet changes with the seed.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = store.documents[:, 1]
    jitter = 1 + 0.1 * torch.rand(len(store), generator=generator, dtype=torch.float64)
    plan: list[list[int]] = []
    batch: list[int] = []
    longest = 0
    for document in torch.argsort(lengths * jitter).tolist():
        length = int(lengths[document])
        if batch and max(longest, length) * (len(batch) + 1) > budget:
            plan.append(batch)
            batch, longest = [], 0
        batch.append(document)
        longest = max(longest, length)
    plan.append(batch)
    return [plan[number] for number in torch.randperm(len(plan), generator=generator).tolist()]


def load_batch(store: FeatureStore, documents: list[int], like: Tensor) -> Batch:
    """Read documents from the store, to the device of ``like``, hidden states in its dtype."""
    rows: list[tuple[int, int, int]] = [tuple(store.documents[document].tolist()) for document in documents]
    longest = max(length for _, length, _ in rows)
    learned = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, (_, length, start) in enumerate(rows):
        learned[row, max(start - 1, 0) : length - 1] = True

    def padded(stored: Tensor, dtype: torch.dtype) -> Tensor:
        values = torch.zeros(len(rows), longest, *stored.shape[1:], dtype=dtype)
        for row, (offset, length, _) in enumerate(rows):
            values[row, :length] = stored[offset : offset + length]
        return values.to(like.device)

    layers = None if store.layers is None else padded(store.layers, like.dtype)
    return Batch(
        padded(store.tokens, torch.int64), padded(store.hidden, like.dtype), learned.to(like.device), layers
    )
