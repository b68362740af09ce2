"""Penalties on tokens already seen, counted along each node's own path, draft tokens included.

A request has seen few of the vocabulary's tokens, so only those logits are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resispec.models.device import put


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """The distinct tokens of prompt and committed output, and how often each is in the output."""

    ids: Tensor  # [P, S] int64, ascending; short rows repeat their last token
    counts: Tensor  # [P, S] float32, 0: in the prompt only

    def rows(self, index: Tensor) -> SeenTokens:
        return SeenTokens(self.ids[index], self.counts[index])


def seen_tokens(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], device: torch.device
) -> SeenTokens:
    """What each request has seen, from its own tokens: nothing is kept that a preemption could lose.

    Raises ValueError if a request has neither prompt nor output.
    """
    seen = []
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = np.asarray([*prompt, *output], dtype=np.int64)
        if tokens.size == 0:
            raise ValueError("a request without tokens has nothing to penalise")
        is_output = np.arange(tokens.size) >= len(prompt)
        ids, inverse = np.unique(tokens, return_inverse=True)
        seen.append((ids, np.bincount(inverse, weights=is_output).astype(np.float32)))
    width = max((ids.size for ids, _ in seen), default=1)
    all_ids = np.empty((len(seen), width), dtype=np.int64)
    all_counts = np.empty((len(seen), width), dtype=np.float32)
    for row, (ids, counts) in enumerate(seen):
        all_ids[row, : ids.size], all_ids[row, ids.size :] = ids, ids[-1]
        all_counts[row, : ids.size], all_counts[row, ids.size :] = counts, counts[-1]
    return SeenTokens(put(all_ids, device), put(all_counts, device))


def penalise_(
    logits: Tensor,
    nodes: Tensor,
    seen: SeenTokens,
    path: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    """Apply the three penalties to the rows ``nodes`` [P] of ``logits`` [B, V], in place.

    In the order of the field's servers: repetition (Keskar et al., CTRL), where tokens of prompt or
    output have positive logits divided and negative ones multiplied by ``repetition``; then OpenAI's,
    over the output alone: ``logit - frequency * count - presence * (count > 0)``.

    path: [P, D] int64, draft tokens down to the node, -1 where there is none; they count as output.
    presence, frequency, repetition: [P] float32.
    """
    tokens, counts = count_path(seen, path)
    where = (nodes[:, None], tokens)
    old = logits[where]
    factor = repetition[:, None]
    new = torch.where(old > 0, old / factor, old * factor)
    # A token listed twice is written twice, with the same value.
    logits[where] = new - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def count_path(seen: SeenTokens, path: Tensor) -> tuple[Tensor, Tensor]:
    """Every token seen at a node and its occurrences in the output there: [P, S + D] each.

    A token may be listed more than once, each time with its full count.
    """
    extra = torch.where(path >= 0, path, seen.ids[:, :1])  # filled up with a token that is listed anyway
    place = torch.searchsorted(seen.ids, extra).clamp(max=seen.ids.shape[1] - 1)
    known = seen.ids.gather(1, place) == extra
    base = torch.where(known, seen.counts.gather(1, place), 0.0)
    tokens = torch.cat([seen.ids, extra], dim=1)
    on_path = (tokens[:, :, None] == path[:, None, :]).sum(dim=2)
    return tokens, torch.cat([seen.counts, base], dim=1) + on_path
