"""A step's inputs in memory that stays where it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from resispec.models.base import Segment, StepInputs
from resispec.models.device import device_for
from resispec.models.kv import FLEX, KVMemory
from resispec.models.visibility import (
    Blocks,
    Grid,
    Visibility,
    block_lists,
    fill_tail_,
    num_blocks,
    prefixes,
)

from .bucket import Bucket


class StepBuffers:
    """Of one bucket. What pads a step is the token 0 at position 0, which sees and writes the scratch row.

    All such tokens are alike, so it does not matter which of them writes it last. Nothing else reads it,
    and they read nothing else.
    """

    def __init__(self, bucket: Bucket, memory: KVMemory, scratch_row: int, hidden: Tensor | None) -> None:
        """hidden: [n, H], of a step of this kind; its shape and dtype count."""
        device = memory.keys.device
        self._bucket = bucket
        self._device = device_for(device)
        self._scratch_row = scratch_row
        self._block_columns = num_blocks(memory.num_rows)
        self._padding = self._device.put([[0], [0], [scratch_row]])
        size = bucket.tokens
        self._ids = torch.zeros(3, size, dtype=torch.long, device=device)
        self._logits_index = torch.zeros(size, dtype=torch.long, device=device)
        self._tail = torch.zeros(size, bucket.tail, dtype=torch.bool, device=device)
        self._hidden = None if hidden is None else hidden.new_zeros(size, hidden.shape[1])
        if memory.attention == FLEX:
            shapes: list[tuple[int, ...]] = [(num_blocks(size), 1 + self._block_columns)]
        else:
            shapes = [(bucket.requests, bucket.length), (size,), (bucket.requests,), (bucket.requests,)]
        shapes = [(size,), (size,), *shapes]
        lengths = [torch.Size(shape).numel() for shape in shapes]
        self._numbers = torch.zeros(sum(lengths), dtype=torch.long, device=device)
        first, prefix, *others = (
            part.view(shape) for part, shape in zip(self._numbers.split(lengths), shapes, strict=True)
        )
        grid = blocks = None
        if memory.attention == FLEX:
            (lists,) = others
            blocks = Blocks(lists[:, 0], lists[:, 1:])
        else:
            members, place, starts, rows = others
            grid = Grid(members, place, starts, rows, bucket.context)
        positions = self._ids[1]
        self.inputs = StepInputs(
            token_ids=self._ids[0],
            positions=positions,
            rows=self._ids[2],
            segments=(),
            logits_index=self._logits_index,
            hidden=self._hidden,
            visibility=Visibility(first, prefix, self._tail, positions, grid, blocks),
        )

    def fill(self, inputs: StepInputs) -> None:
        """Take a step's inputs over, without waiting for the device."""
        count, wanted = inputs.token_ids.shape[0], inputs.logits_index.shape[0]
        self._ids[:, :count] = torch.stack([inputs.token_ids, inputs.positions, inputs.rows])
        self._ids[:, count:] = self._padding
        self._logits_index[:wanted] = inputs.logits_index
        self._logits_index[wanted:] = 0
        if self._hidden is not None:
            assert inputs.hidden is not None
            self._hidden[:count] = inputs.hidden
            self._hidden[count:] = 0.0
        fill_tail_(self._tail, inputs.segments)
        self._numbers.copy_(self._device.put(self._describe(inputs.segments, count)))

    def _describe(self, segments: Sequence[Segment], count: int) -> list[int]:
        missing = self._bucket.tokens - count
        first, prefix = prefixes(segments)
        numbers = [*first, *[self._scratch_row] * missing, *prefix, *[1] * missing]
        if self._bucket.requests == 0:
            for blocks in block_lists(segments, self._bucket.tokens, self._scratch_row):
                numbers += [len(blocks), *blocks, *[0] * (self._block_columns - len(blocks))]
            return numbers
        return numbers + self._describe_grid(segments, missing)

    def _describe_grid(self, segments: Sequence[Segment], missing: int) -> list[int]:
        """Missing requests repeat the first one, missing tokens take over what its first one sees."""
        width = self._bucket.length
        padded = [*segments, *[segments[0]] * (self._bucket.requests - len(segments))]
        members: list[int] = []
        place: list[int] = []
        for row, segment in enumerate(padded):
            members += range(segment.start, segment.start + segment.length)
            members += [segment.start] * (width - segment.length)
            if row < len(segments):
                place += range(row * width, row * width + segment.length)
        starts = [segment.kv_start for segment in padded]
        lengths = [segment.kv_length for segment in padded]
        return [*members, *place, *[0] * missing, *starts, *lengths]
