"""Log-probabilities of tokens under the target's raw law, for requests that ask.

The raw law is the softmax of the logits as the model gives them, over the token ids that exist: before
penalties, biases, masks, temperature and truncation. It says what the model thinks, whatever was allowed.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from resispec.models.device import device_for, put

from ..outputs import TokenLogprobs
from ..scheduler import PlannedSequence

_ROWS = 64  # measured at a time, where the device has no block of its own


def measure(logits: Tensor, rows: Tensor, tokens: Tensor, top: int) -> Tensor:
    """What `unpack` reads, on the device still: [R, 2 + 2 * top] float64, where token ids are exact.

    logits: [nodes, V] float32. rows: [R] int64, of ``logits``. tokens: [R] int64, the token that came next.
    Columns: log-probability and rank of the token, the ``top`` likeliest ids, their log-probabilities.
    """
    size = device_for(logits.device).row_block or _ROWS
    buffer = logits.new_empty(min(size, rows.shape[0]), logits.shape[1])
    parts = [
        _measure_(torch.index_select(logits, 0, some, out=buffer[: some.shape[0]]), token, top)
        for some, token in zip(rows.split(size), tokens.split(size), strict=True)
    ]
    return torch.cat(parts)


def _measure_(logits: Tensor, tokens: Tensor, top: int) -> Tensor:
    """`measure` of each row. Leaves something else in ``logits``."""
    chosen = logits.gather(1, tokens[:, None])
    rank = 1 + (logits > chosen).sum(dim=1, keepdim=True)
    best, ids = logits.topk(max(1, top), dim=1)
    total = best[:, :1] + logits.sub_(best[:, :1]).exp_().sum(dim=1, keepdim=True).log_()
    parts = (chosen - total, rank, ids[:, :top], best[:, :top] - total)
    return torch.cat([part.double() for part in parts], dim=1)


def unpack(token_id: int, row: SequenceOf[float], top: int) -> TokenLogprobs:
    """One row of `measure`, read back. ``top``: how many alternatives to keep of those measured."""
    width = (len(row) - 2) // 2
    ids, values = row[2 : 2 + width], row[2 + width :]
    best = tuple((int(token), value) for token, value in zip(ids[:top], values[:top], strict=True))
    return TokenLogprobs(token_id, row[0], int(row[1]), best)


def measure_walks(logits: Tensor, nodes: Tensor, tokens: Tensor, wanted: SequenceOf[int | None]) -> Tensor:
    """`measure` along the walks of the requests that ask: [asking * (D + 1), 2 + 2 * top].

    nodes, tokens: [R, D + 1], a walk's nodes from the root on and the token that came after each; negative
    behind its end, where something is measured all the same: to know the end would take a read.
    wanted: of each request, how many alternatives; None: no log-probabilities.
    """
    asking = [row for row, top in enumerate(wanted) if top is not None]
    rows = put(asking, nodes.device)
    nodes, tokens = (walk[rows].clamp_min(0).flatten() for walk in (nodes, tokens))
    return measure(logits, nodes, tokens, max(wanted[row] or 0 for row in asking))


def unpack_walk(
    tokens: SequenceOf[int], rows: SequenceOf[SequenceOf[float]], top: int
) -> tuple[TokenLogprobs, ...]:
    """Of one request's ``tokens``; ``rows`` has what was measured behind them, too."""
    return tuple(unpack(token, row, top) for token, row in zip(tokens, rows, strict=False))


def prompt_logprobs(
    logits: Tensor, items: SequenceOf[PlannedSequence], first_row: int
) -> dict[int, tuple[TokenLogprobs, ...]]:
    """By item, the log-probabilities of the prompt tokens that this step has scored.

    logits: [rows, V] float32; from ``first_row`` on, those of `Sequence.scored_positions`, item by item.
    """
    scored = {
        index: positions
        for index, item in enumerate(items)
        if item.sequence.reusable_rows is not None
        and (positions := item.sequence.scored_positions(item.num_tokens))
    }
    if not scored:
        return {}
    wanted = {index: items[index].sequence.request.sampling.prompt_logprobs or 0 for index in scored}
    tokens = [items[index].sequence.token_ids[p + 1] for index, span in scored.items() for p in span]
    measured = measure(
        logits,
        torch.arange(first_row, first_row + len(tokens), device=logits.device),
        put(tokens, logits.device),
        max(wanted.values()),
    )
    rows = iter(zip(tokens, measured.tolist(), strict=True))
    return {
        index: tuple(unpack(*next(rows), wanted[index]) for _ in positions)
        for index, positions in scored.items()
    }
