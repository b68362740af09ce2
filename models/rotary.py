"""Rotary positions by look-up: angles take longer to compute than to find."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import StepContext

_FIXED = frozenset({"default", "linear", "llama3", "yarn"})  # kinds whose angles go by the position alone
_LEAST = 1024  # positions


class RotaryTable:
    """What a model's rotary embedding gives, kept for the positions met so far. Not for two threads."""

    def __init__(self, rotary: Any) -> None:
        """rotary: of transformers, ``(x, positions [1, N]) -> cos, sin [1, N, D]``."""
        self._rotary = rotary
        kind = getattr(rotary, "rope_type", None)  # of some families a dictionary, by kinds of layers
        self._keeps = isinstance(kind, str) and kind in _FIXED
        # [3, P, D]: cosines, sines, and sines with their first half negated. Together, for one look-up.
        self._table = torch.empty(3, 0, 0)

    def rotation(self, hidden: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """``cos`` and ``sin`` [1, N, D] of the step's positions, for ``hidden`` [N, H]."""
        positions = step.inputs.positions
        # A step that is recorded has no segments: what it reads may not be made anew later.
        if not self._keeps or positions.device.type != "cpu" or not step.inputs.segments:
            cos, sin = self._rotary.forward(hidden[None], positions[None])
            return cos, sin
        # A token's position is below the number of rows that it may see.
        end = max(part.kv_length for part in step.inputs.segments)
        if end > self._table.shape[1] or self._table.dtype is not hidden.dtype:
            self._table = self._computed(max(_LEAST, 2 * end), hidden)
        cos, sin, signed = self._table.index_select(1, positions).unbind(0)
        step.know_rotation(first := cos[None], signed)
        return first, sin[None]

    def _computed(self, count: int, hidden: Tensor) -> Tensor:
        cos, sin = self._rotary.forward(hidden[None], torch.arange(count)[None])
        first, second = sin[0].chunk(2, dim=-1)
        return torch.stack([cos[0], sin[0], torch.cat([-first, second], dim=-1)])
