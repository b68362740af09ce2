"""Which segments of a step are attended in one call, and what each of their tokens sees.

A request's keys are one slice of the KV memory, so one call per request needs no copy::

    segment   a a a a a a a a a | b | c | d | e e e e | f f f
    call      1                 | 2         | 3                 b, c, d: one token each; f is padded

On a CPU a call costs more than reading a few hundred keys, so neighbouring segments of a few tokens
share one, over keys gathered to the longest of them (docs/performance.md has the figures). Single tokens
keep to themselves: in company their keys would be multiplied with queries that are only padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Segment, StepInputs
from .device import put
from .prompt_attention import LEAST_ROWS, LEAST_TOKENS, can_attend_in_blocks

_GATHERED_LENGTH = 8  # tokens of a segment, at most: longer ones have enough work for a call of their own
_GATHERED_ROWS = 1 << 15  # of one call: what is gathered takes memory
_PADDING = 1.5  # gathered rows over rows needed, at most; the same of queries


@dataclass(frozen=True, slots=True)
class Run:
    """Segments attended in one call: ``count`` of them, of ``length`` tokens or padded to it, in order."""

    start: int  # first token
    count: int
    length: int
    kv_start: int  # of a single segment: its first row
    kv_length: int  # rows every segment is padded to
    rows: Tensor | None  # [count * kv_length] int64: gathered KV rows. None: the slice at kv_start
    bias: Tensor | None  # [count, 1, groups * length, kv_length]: 0 or -inf. None: everything is seen
    in_blocks: bool = False  # a chunk of a prompt, causal, without a bias: `PromptAttention`'s
    queries: Tensor | None = None  # [count * length] int64: a token for every place. None: they are in order
    places: Tensor | None = None  # [tokens] int64, with `queries`: the place of each token


@dataclass(frozen=True, slots=True)
class Alone:
    """What the only token of a step sees: the rows from ``kv_start`` on, of which the last is its own."""

    kv_start: int
    kv_length: int
    row: Tensor  # [1] int64: its own, counted from kv_start


def plan_alone(inputs: StepInputs, window: int | None) -> Alone | None:
    """None for a step of more tokens than one, or whose token is not the last of its rows."""
    if len(inputs.segments) != 1 or inputs.segments[0].length != 1 or inputs.segments[0].mask is not None:
        return None
    start, end = inputs.segments[0].kv_start, inputs.segments[0].kv_start + inputs.segments[0].kv_length
    if int(inputs.rows[0]) != end - 1:
        return None
    start = start if window is None else max(start, end - window)
    return Alone(start, end - start, torch.tensor([end - start - 1], device=inputs.rows.device))


def plan_runs(inputs: StepInputs, window: int | None, groups: int, dtype: torch.dtype) -> tuple[Run, ...]:
    """Cover the step's segments. groups: query heads to a KV head, which are folded into the query axis."""
    return tuple(_run(part, inputs.positions, window, groups, dtype) for part in _grouped(inputs.segments))


def _grouped(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Neighbours share a call as long as that costs less than one more for the last of them."""
    first = 0
    shortest = longest = tokens = most_rows = rows = 0  # of the group; a step may have hundreds
    for index, segment in enumerate(segments):
        length, kv_length = segment.length, segment.kv_length
        if index > first:
            count = index - first + 1
            low, high, sum_length = min(shortest, length), max(longest, length), tokens + length
            most, sum_rows = max(most_rows, kv_length), rows + kv_length
            alike = low == high or (low > 1 and high * count <= _PADDING * sum_length)
            if (
                alike
                and high <= _GATHERED_LENGTH
                and most * count <= min(_GATHERED_ROWS, _PADDING * sum_rows)
            ):
                shortest, longest, tokens, most_rows, rows = low, high, sum_length, most, sum_rows
                continue
            yield segments[first:index]
            first = index
        shortest = longest = tokens = length
        most_rows = rows = kv_length
    if segments:
        yield segments[first:]


def _run(
    segments: Sequence[Segment], positions: Tensor, window: int | None, groups: int, dtype: torch.dtype
) -> Run:
    first = segments[0]
    if in_blocks(first, positions.device, window, dtype):
        return Run(first.start, 1, first.length, first.kv_start, first.kv_length, None, None, in_blocks=True)
    longest = max(segment.kv_length for segment in segments)
    length = max(segment.length for segment in segments)
    visible = [_visible(segment, positions, window) for segment in segments]
    rows = bias = queries = places = None
    if len(segments) > 1:
        bounds = put([[s.kv_start, s.kv_length - 1] for s in segments], positions.device)
        offsets = torch.arange(longest, device=positions.device)
        # Padding repeats a request's own last row, so that what is masked is a number all the same.
        rows = (bounds[:, :1] + torch.minimum(offsets, bounds[:, 1:])).flatten()
    if len(segments) > 1 or visible[0] is not None:
        shape = (len(segments), 1, length, longest)
        bias = torch.full(shape, float("-inf"), dtype=dtype, device=positions.device)
        for row, (segment, mask) in enumerate(zip(segments, visible, strict=True)):
            own = bias[row, 0, : segment.length, : segment.kv_length]
            own.zero_() if mask is None else own.masked_fill_(mask, 0.0)
            bias[row, 0, segment.length :] = 0.0  # of padding, whose outcome is a number that nobody reads
        bias = bias.repeat(1, 1, groups, 1)
    if any(segment.length < length for segment in segments):
        padded = range(length)
        chosen = [segment.start + min(place, segment.length - 1) for segment in segments for place in padded]
        real = [
            row * length + place for row, segment in enumerate(segments) for place in range(segment.length)
        ]
        queries, places = put(chosen, positions.device), put(real, positions.device)
    return Run(
        first.start,
        len(segments),
        length,
        first.kv_start,
        longest,
        rows,
        bias,
        queries=queries,
        places=places,
    )


def in_blocks(segment: Segment, device: torch.device, window: int | None, dtype: torch.dtype) -> bool:
    """Whether a segment, which is longer than those that share a call, is a causal chunk for blocks."""
    sees_all = window is None or segment.kv_length <= window
    is_large = segment.length >= LEAST_TOKENS and segment.kv_length >= LEAST_ROWS
    return is_large and segment.mask is None and sees_all and can_attend_in_blocks(device, dtype)


def _visible(segment: Segment, positions: Tensor, window: int | None) -> Tensor | None:
    """What a segment's tokens see: [length, kv_length] bool, or None when that is everything.

    Row ``j`` of a request holds position ``j``, but for tree nodes, whose rows lie at or behind their
    positions and within the tree's depth of them; so a window wider than a tree can go by rows.
    """
    queries = positions[segment.start : segment.start + segment.length, None]
    mask = segment.mask
    if mask is None:
        if segment.length == 1 and (window is None or segment.kv_length <= window):
            return None
        first = segment.kv_length - segment.length
        own = torch.arange(first, segment.kv_length, device=positions.device)[:, None]
        mask = torch.arange(segment.kv_length, device=positions.device)[None, :] <= own
    elif mask.shape[1] < segment.kv_length:
        mask = F.pad(mask, (segment.kv_length - mask.shape[1], 0), value=True)
    if window is not None and segment.kv_length > window:
        rows = torch.arange(segment.kv_length, device=positions.device)[None, :]
        mask = mask & (rows > queries - window)
    return mask
