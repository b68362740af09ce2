"""A draft head as a `StepModel`: packed steps over a KV memory of one layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resispec.models.attention import StepContext
from resispec.models.base import StepInputs, StepOutputs
from resispec.models.head.module import HeadModule
from resispec.models.kv import KVGeometry, KVMemory
from resispec.models.pack import PackedLinear, pack_linears


def head_geometry(module: HeadModule, dtype: torch.dtype) -> KVGeometry:
    """What one row of the head's KV memory holds."""
    config = module.config
    return KVGeometry(
        num_layers=1,
        num_kv_heads=config.num_kv_heads,
        key_dim=config.head_dim,
        value_dim=config.head_dim,
        hidden_size=config.hidden_size,
        dtype=dtype,
    )


class HeadStepModel:
    """The head with the target's embedding and the rows of its output matrix that the head may propose."""

    needs_hidden = True

    def __init__(self, module: HeadModule, vocab_ids: Tensor, target: Any, memory: KVMemory) -> None:
        """target: the transformers model the head was trained for; vocab_ids: [V] int64."""
        self.memory = memory
        self._module = module
        self._vocab_ids = vocab_ids
        self._embedding = target.get_input_embeddings()
        rows = target.get_output_embeddings().weight.detach()[vocab_ids].to(memory.geometry.dtype)
        output = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
        output.weight = nn.Parameter(rows, requires_grad=False)
        self._output: nn.Linear | PackedLinear = output

    @property
    def max_positions(self) -> int:
        return self._module.config.max_positions

    @property
    def vocab_ids(self) -> Tensor | None:
        return self._vocab_ids

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutputs:
        """``inputs.hidden [N, H]`` is required. Returns logits over ``vocab_ids`` and the head's states."""
        assert inputs.hidden is not None, "a draft head steps on the target's hidden states"
        step = StepContext(self.memory, inputs)

        def attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self.memory.write(0, inputs.rows, keys, values)
            return step.attend(query, 0, query.shape[-1] ** -0.5, None)

        embedded = self._embedding(inputs.token_ids)
        states = self._module(embedded, inputs.hidden.to(embedded.dtype), inputs.positions, attention)
        logits = self._output(states[inputs.logits_index])
        return StepOutputs(logits.float(), states)

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        self.memory.move_rows(source, destination)

    def pack(self) -> None:
        """Lay the weights out for the CPU's kernels."""
        pack_linears(self._module)
        if isinstance(self._output, nn.Linear):
            self._output = PackedLinear(self._output)
