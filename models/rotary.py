"""Rotary positions by look-up: angles take longer to compute than to find."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import StepContext

_FIXED = frozenset({"default", "linear", "llama3", "yarn"})  # kinds whose angles go by the position alone
_LEAST = 1024  # positions


class RotaryTable:
    """What a model's rotary embedding gives, kept for the positions met so far. Not for use by two threads."""

    def __init__(self, rotary: Any) -> None:
        """rotary: of transformers, ``(x, positions [1, N]) -> cos, sin [1, N, D]``."""
        self._rotary = rotary
        kind = getattr(rotary, "rope_type", None)  # of some families a dictionary, by kinds of layers
        self._keeps = isinstance(kind, str) and kind in _FIXED
        self._tables = torch.empty(3, 0, 0)  # cosines, sines, and sines with their first half negated

    def rotation(self, hidden: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """``cos`` and ``sin`` [1, N, D] of the step's positions, for ``hidden`` [N, H]."""
        positions = step.inputs.positions
        if not self._keeps or positions.device.type != "cpu":
            cos, sin = self._rotary.forward(hidden[None], positions[None])
            return cos, sin
        # A token's position is below the number of rows that it may see.
        end = max(part.kv_length for part in step.inputs.segments)
        if end > self._tables.shape[1] or self._tables.dtype is not hidden.dtype:
            self._tables = self._computed(max(_LEAST, 2 * end), hidden)
        cos, sin, signed = (table.index_select(0, positions) for table in self._tables)
        step.know_rotation(first := cos[None], signed)
        return first, sin[None]

    def _computed(self, count: int, hidden: Tensor) -> Tensor:
        cos, sin = self._rotary.forward(hidden[None], torch.arange(count)[None])
        first, second = sin[0].chunk(2, dim=-1)
        return torch.stack([cos[0], sin[0], torch.cat([-first, second], dim=-1)])
