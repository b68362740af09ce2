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
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    hidden = torch.zeros(len(rows), longest, store.hidden.shape[1], dtype=like.dtype)
    learned = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, (offset, length, start) in enumerate(rows):
        tokens[row, :length] = store.tokens[offset : offset + length]
        hidden[row, :length] = store.hidden[offset : offset + length]
        learned[row, max(start - 1, 0) : length - 1] = True
    return Batch(tokens.to(like.device), hidden.to(like.device), learned.to(like.device))
