"""The target's top tokens at the nodes of requests whose sources learn from them."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from resispec.models.device import put

from ..sources.base import TopTokens
from ..sources.recycle import NUM_TOPS


def measure_tops(logits: Tensor, tokens: Tensor, nodes: SequenceOf[int]) -> Tensor:
    """What `unpack_tops` reads: [n, 1 + k] int64, each node's own token and the best ones after it.

    logits: [rows, V] float32. tokens: [rows] int64. nodes: n rows.
    """
    rows = put(nodes, logits.device)
    best = logits[rows].topk(min(NUM_TOPS, logits.shape[1]), dim=1).indices
    return torch.cat([tokens[rows, None], best], dim=1)


def unpack_tops(
    owners: SequenceOf[int], rows: SequenceOf[SequenceOf[float]]
) -> dict[int, tuple[TopTokens, ...]]:
    """By owner. rows: what was measured, read back, with the owner of each."""
    tops: dict[int, list[TopTokens]] = {}
    for owner, (token, *best) in zip(owners, rows, strict=True):
        tops.setdefault(owner, []).append((int(token), tuple(int(top) for top in best)))
    return {owner: tuple(found) for owner, found in tops.items()}
