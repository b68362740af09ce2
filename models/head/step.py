"""A head on the target's states as a `StepModel`: packed steps over a KV memory of one layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs, StepOutputs
from resispec.models.head.base import StateHead
from resispec.models.head.fused import FusedHead
from resispec.models.head.module import HeadModule
from resispec.models.kv import KVMemory
from resispec.models.layout import lay_out_linears


class HeadStepModel:
    """A head with the embedding and the output matrix it goes with."""

    needs_hidden = True

    def __init__(self, head: StateHead, vocab_ids: Tensor | None, target: Any, memory: KVMemory) -> None:
        """target: the transformers model the head was trained for; vocab_ids: [V] int64, the target's ids
        of its logits, or None for the identity.
        """
        self.memory = memory
        self.vocab_ids = vocab_ids
        self._head = head
        self._embedding = head.embedding(target)
        self._readout = head.readout(target, vocab_ids, memory.geometry.dtype)
        self._fused = FusedHead(head) if type(head) is HeadModule else None

    @property
    def max_positions(self) -> int:
        return self._head.max_positions

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutputs:
        """``inputs.hidden [N, H]`` is required. Returns logits over ``vocab_ids`` and the head's states."""
        assert inputs.hidden is not None, "a draft head steps on the target's hidden states"
        seen = replace(inputs, segments=_without_first(inputs.segments)) if self._head.skips_first else inputs
        step = StepContext(self.memory, seen)

        def attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self.memory.write(0, inputs.rows, keys, values)
            return step.attend(query, 0, query.shape[-1] ** -0.5, None)

        embedded = self._embedding(inputs.token_ids)
        hidden = inputs.hidden.to(embedded.dtype)
        if self._fused is not None:
            states = self._fused.run(embedded, hidden, inputs.positions, step)
        else:
            states = self._head(embedded, hidden, inputs.positions, attention)
        logits = self._readout(states[inputs.logits_index])
        return StepOutputs(logits.float(), states)

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        self.memory.move_rows(source, destination)

    def lay_out(self, quantization: str) -> None:
        """Lay the weights out for the kernels of the device, as `lay_out_linears` does."""
        # Of a fused head there is left what reads the target's layers.
        for part in (self._head, self._fused, self._readout):
            if part is not None:
                lay_out_linears(part, quantization, self.memory.keys.device, self.memory.geometry.dtype)


def _without_first(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The same tokens, of which none sees a request's first but that one itself.

    ::

        row         0 1 2 3 4               0 1 2 3 4
        segment       [. . .]      ->         [. . .]          sees rows from 1 on
        segment     [. . . .]      ->       [.][. . .]         the first by itself
    """
    parts: list[Segment] = []
    for part in segments:
        start, length = part.start, part.length
        if part.mask is None and part.length == part.kv_length:
            parts.append(Segment(start, 1, part.kv_start, 1))
            start, length = start + 1, length - 1
        if length:
            mask = None if part.mask is None else part.mask[:, 1:]
            parts.append(Segment(start, length, part.kv_start + 1, part.kv_length - 1, mask))
    return tuple(parts)
