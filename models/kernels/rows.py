"""Attention by our own kernel, which reads each request's rows where they lie."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from resispec.models.base import Segment, StepInputs
from resispec.models.kv import KVMemory
from resispec.models.native import NativeKernels
from resispec.models.runs import in_blocks

from .segments import SegmentAttention


class RowAttention:
    """All segments in one call, but for long chunks of prompts, which are products of large matrices."""

    def __init__(self, memory: KVMemory, inputs: StepInputs, kernels: NativeKernels) -> None:
        self._memory = memory
        self._inputs = inputs
        self._kernels = kernels
        self._plans: dict[int | None, tuple[Tensor | None, tuple[Segment, ...], SegmentAttention | None]] = {}
        # What the table points to must live as long as it does.
        self._masks = [None if part.mask is None else part.mask.contiguous() for part in inputs.segments]

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, dim] -> [N, query heads, dim]."""
        keys, values = self._memory.layer(layer)
        count, heads, dim = query.shape
        table, long, others = self._planned(window)
        if table is None:
            assert others is not None
            return others.attend(query, layer, scaling, window)
        if query.stride(1) != dim or query.stride(2) != 1:
            query = query.contiguous()
        out = query.new_empty(count, heads, dim)
        self._kernels.attend(out, query, keys, values, table, self._inputs.positions, scaling, window)
        if others is not None:
            attended, begin = others.attend(query, layer, scaling, window), 0
            for part in long:
                out[part.start : part.start + part.length] = attended[begin : begin + part.length]
                begin += part.length
        return out

    def table(self, window: int | None) -> Tensor | None:
        """[S, 6] int64: all segments, for the kernel. None: some are attended in other ways."""
        table, long, _ = self._planned(window)
        return None if long else table

    def _planned(
        self, window: int | None
    ) -> tuple[Tensor | None, tuple[Segment, ...], SegmentAttention | None]:
        plan = self._plans.get(window)
        if plan is None:
            plan = self._plans[window] = self._plan(window)
        return plan

    def _plan(self, window: int | None) -> tuple[Tensor | None, tuple[Segment, ...], SegmentAttention | None]:
        """The table of the segments for the kernel, the others, and what attends these, if there are any."""
        device, dtype = self._inputs.positions.device, self._memory.geometry.dtype
        long: list[Segment] = []
        table: list[tuple[int, ...]] = []
        for part, mask in zip(self._inputs.segments, self._masks, strict=True):
            if in_blocks(part, device, window, dtype):
                long.append(part)
                continue
            masked = (0, 0) if mask is None else (mask.data_ptr(), mask.shape[1])
            table.append((part.start, part.length, part.kv_start, part.kv_length, *masked))
        others = SegmentAttention(self._memory, replace(self._inputs, segments=tuple(long))) if long else None
        return torch.tensor(table) if table else None, tuple(long), others
