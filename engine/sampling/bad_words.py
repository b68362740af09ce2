"""Token sequences that must not come up in the output, told apart along each node's own path.

The last token of a sequence is masked wherever the output before it ends with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resispec.models.device import put

from ..request import SamplingParams


@dataclass(frozen=True, slots=True)
class BadWords:
    """The ``W`` sequences of one request, and its rows of the batch."""

    nodes: Tensor  # [n] int64
    before: Tensor  # [W, P] int64: all but the last token, aligned at the end; -1: nothing is asked there
    last: Tensor  # [W] int64

    def forbid_(self, logits: Tensor, recent: Tensor) -> None:
        """Mask in ``logits`` [B, V], in place. recent: [B, H >= P] int64, output up to the node; -1: none."""
        seen = recent[self.nodes, recent.shape[1] - self.before.shape[1] :]
        fits = ((self.before < 0) | (self.before == seen[:, None])).all(dim=2)  # [n, W]
        # Added, not written: sequences with the same last token do not undo each other.
        penalty = torch.where(fits, -torch.inf, 0.0)
        logits.index_put_((self.nodes[:, None], self.last[None]), penalty, accumulate=True)


def bad_words(params: Sequence[SamplingParams], device: torch.device) -> tuple[BadWords, ...]:
    """Of every request among the rows' ``params`` that has some."""
    rows: dict[int, list[int]] = {}
    for row, used in enumerate(params):
        if used.bad_words:
            rows.setdefault(id(used), []).append(row)
    return tuple(_of_request(params[nodes[0]].bad_words, nodes, device) for nodes in rows.values())


def _of_request(
    sequences: tuple[tuple[int, ...], ...], nodes: Sequence[int], device: torch.device
) -> BadWords:
    before = np.full((len(sequences), max(map(len, sequences)) - 1), -1, dtype=np.int64)
    for row, tokens in enumerate(sequences):
        if len(tokens) > 1:
            before[row, 1 - len(tokens) :] = tokens[:-1]
    return BadWords(
        put(nodes, device),
        put(before, device),
        put([tokens[-1] for tokens in sequences], device),
    )


def recent_tokens(outputs: Sequence[Sequence[int]], path: Tensor, rules: Sequence[BadWords]) -> Tensor:
    """As many output tokens up to each node as ``rules`` look at: [B, H] int64, -1 in front for want of more.

    outputs: committed, of each node's request. path: [B, D] int64, drafted ones, -1 in between.
    """
    count = max(rule.before.shape[1] for rule in rules)
    tails = np.full((len(outputs), count), -1, dtype=np.int64)
    for row, output in enumerate(outputs):
        tail = output[max(0, len(output) - count) :]
        tails[row, count - len(tail) :] = tail
    tokens = torch.cat([put(tails, path.device), path], dim=1)
    order = (tokens >= 0).byte().argsort(dim=1, stable=True)  # gaps to the front
    return tokens.gather(1, order)[:, tokens.shape[1] - count :]
