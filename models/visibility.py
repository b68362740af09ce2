"""What each token of a step sees, as tensors: for attention that leaves no decision to the host.

A token sees rows of one run: all of a prefix, and of those behind it the ones that a bitmap allows::

    rows of the request      0 1 2 3 4 | 5 6 7 8
    a node of a tree sees    x x x x x   x . x .      prefix 5; tail: its ancestors and itself
    a token of a prompt      x x x . .   . . . .      prefix 3; tail: nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .base import Segment


@dataclass(frozen=True, slots=True)
class Grid:
    """The tokens request by request: B requests of up to T tokens, which see up to ``context`` rows."""

    members: Tensor  # [B, T] int64: tokens; where a request has fewer, its first again
    place: Tensor  # [N] int64: where each token is among the B * T
    starts: Tensor  # [B] int64: the request's first KV row
    lengths: Tensor  # [B] int64: rows its tokens may see, counted from there; 1 or more
    context: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """For every block of tokens, the blocks of KV rows in which they see any; see `BLOCK`."""

    counts: Tensor  # [Q] int64
    indices: Tensor  # [Q, K] int64, K blocks there are: the first ``counts`` of each line mean something


@dataclass(frozen=True, slots=True)
class Visibility:
    """Of N tokens. ``grid`` and ``blocks`` are there for the kernels that go by them."""

    first: Tensor  # [N] int64: the request's first KV row
    prefix: Tensor  # [N] int64: rows from there on that the token sees all of
    tail: Tensor  # [N, M] bool, M >= 1: which of the M rows behind them
    positions: Tensor  # [N] int64
    grid: Grid | None = None
    blocks: Blocks | None = None


def sees(
    first: Tensor,
    prefix: Tensor,
    tail: Tensor,
    positions: Tensor,
    token: Tensor,
    row: Tensor,
    window: int | None,
) -> Tensor:
    """Whether ``token`` sees KV row ``row``: int64, broadcast together -> bool.

    The first four as in `Visibility`: single tensors, as a compiler of kernels wants them.
    window: how many rows before its position, its own included, a token sees at most; None: all.
    """
    offset = row - first[token]
    behind = offset - prefix[token]
    last = tail.shape[1] - 1
    seen = (behind < 0) | ((behind <= last) & tail[token, behind.clamp(0, last)])
    seen = seen & (offset >= 0)
    if window is not None:
        seen = seen & (offset > positions[token] - window)
    return seen


def prefixes(segments: Sequence[Segment]) -> tuple[list[int], list[int]]:
    """``first`` and ``prefix`` of every token."""
    first: list[int] = []
    prefix: list[int] = []
    for segment in segments:
        first += [segment.kv_start] * segment.length
        if segment.mask is None:
            prefix += range(segment.kv_length - segment.length + 1, segment.kv_length + 1)
        else:
            prefix += [segment.kv_length - segment.mask.shape[1]] * segment.length
    return first, prefix


def tail_width(segments: Sequence[Segment]) -> int:
    """The M that holds all masks."""
    return max((segment.mask.shape[1] for segment in segments if segment.mask is not None), default=0)


def fill_tail_(tail: Tensor, segments: Sequence[Segment]) -> None:
    """tail: [N, M] bool, M at least `tail_width`."""
    tail.zero_()
    for segment in segments:
        if segment.mask is not None:
            rows = tail[segment.start : segment.start + segment.length, : segment.mask.shape[1]]
            rows.copy_(segment.mask)


BLOCK = 128  # tokens, and KV rows, of a block: what FlexAttention's kernels divide their work into


def num_blocks(count: int) -> int:
    """Of so many tokens or rows."""
    return -(-count // BLOCK)


def block_lists(segments: Sequence[Segment], num_tokens: int, scratch: int | None) -> list[list[int]]:
    """The KV blocks that each block of tokens needs, ascending.

    scratch: the row that tokens behind the segments see, up to ``num_tokens``.
    """
    wanted: list[set[int]] = [set() for _ in range(num_blocks(num_tokens))]
    end = 0
    for segment in segments:
        end = segment.start + segment.length
        last_row = segment.kv_start + segment.kv_length - 1
        rows = range(segment.kv_start // BLOCK, last_row // BLOCK + 1)
        for block in range(segment.start // BLOCK, (end - 1) // BLOCK + 1):
            wanted[block].update(rows)
    if end < num_tokens:
        assert scratch is not None, "tokens that belong to no segment see the scratch row"
        for block in range(end // BLOCK, len(wanted)):
            wanted[block].add(scratch // BLOCK)
    return [sorted(rows) for rows in wanted]


def visibility_of(
    segments: Sequence[Segment], positions: Tensor, first: Tensor, prefix: Tensor, blocks: Blocks | None
) -> Visibility:
    """Of the tokens of some segments; ``first`` and ``prefix`` as `prefixes` gives them."""
    tail = torch.empty(
        positions.shape[0], max(2, tail_width(segments)), dtype=torch.bool, device=positions.device
    )
    fill_tail_(tail, segments)
    return Visibility(first, prefix, tail, positions, blocks=blocks)
