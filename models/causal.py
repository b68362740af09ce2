"""Any causal language model of transformers, run in packed steps over the KV memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import ATTENTION_NAME, CacheShape, StepContext, register_attention, run_model
from .base import ModelError, Segment, StepInputs, StepOutputs
from .head.tap import StateTap
from .kv import KVGeometry, KVMemory
from .layout import lay_out_linears
from .walk import Walk


def chunk_inputs(token_ids: list[int], start: int, device: torch.device, kv_start: int = 0) -> StepInputs:
    """One request's chunk of consecutive tokens at positions ``start ..``, logits for all of them."""
    positions = torch.arange(start, start + len(token_ids), device=device)
    return StepInputs(
        token_ids=torch.tensor(token_ids, device=device),
        positions=positions,
        rows=kv_start + positions,
        segments=(Segment(0, len(token_ids), kv_start, start + len(token_ids)),),
        logits_index=torch.arange(len(token_ids), device=device),
    )


class _GeometryProbe(CacheShape):
    """A stand-in for a KV memory that notes what a model writes to it."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer] = (keys.shape[1], keys.shape[3], values.shape[3])
        return keys, values


@torch.inference_mode()
def probe_geometry(model: Any) -> KVGeometry:
    """Run one token through ``model`` to see what it keeps per token. Raises ModelError."""
    probe = _GeometryProbe()
    device = next(model.parameters()).device
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    previous = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        model(input_ids=zero, position_ids=zero, cache=probe, use_cache=True)
    finally:
        model.set_attn_implementation(previous)
    shapes = set(probe.shapes.values())
    if len(shapes) != 1 or sorted(probe.shapes) != list(range(len(probe.shapes))):
        kept = "different state in different layers" if shapes else "no KV cache"
        raise ModelError(
            f"{type(model).__name__} keeps {kept}; only "
            "decoders with the same KV heads in every layer are supported"
        )
    kv_heads, key_dim, value_dim = shapes.pop()
    output = model.get_output_embeddings()
    return KVGeometry(
        len(probe.shapes), kv_heads, key_dim, value_dim, int(output.weight.shape[1]), model.dtype
    )


class CausalModel:
    """A `StepModel` around a transformers model, as it was loaded or fused."""

    needs_hidden = False
    vocab_ids: Tensor | None = None

    def __init__(
        self,
        model: Any,
        memory: KVMemory,
        max_positions: int,
        tap: StateTap | None = None,
        walk: Walk | None = None,
    ) -> None:
        """tap: where in ``model`` the states are that ``memory`` keeps; None: they are the last ones.

        walk: a quicker way through ``model`` that gives the same.
        """
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        self.model = model
        self.memory = memory
        self._max_positions = max_positions
        self._tap = tap
        self._walk = walk
        self._last_hidden: Tensor | None = None
        # The hidden states the output matrix reads, before rows are picked for logits.
        model.get_decoder().register_forward_hook(self._keep_hidden)

    @property
    def max_positions(self) -> int:
        return self._max_positions

    def _keep_hidden(self, _module: Any, _args: Any, output: Any) -> None:
        self._last_hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutputs:
        logits, hidden = self._run(StepContext(self.memory, inputs))
        if self.memory.states is not None and self._tap is not None:
            self.memory.states.write_parts(inputs.rows, self._tap.take(hidden), self._tap.join)
        elif self.memory.states is not None:
            self.memory.states.write(inputs.rows, hidden)
        return StepOutputs(logits.float(), hidden)

    def _run(self, step: StepContext) -> tuple[Tensor, Tensor]:
        """Logits [L, V] and last hidden states [N, H]."""
        if self._walk is not None:
            return self._walk.run(step)
        output = run_model(self.model, step)
        hidden, self._last_hidden = self._last_hidden, None
        assert hidden is not None
        return output.logits[0], hidden[0]

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        self.memory.move_rows(source, destination)

    def lay_out(self, quantization: str) -> None:
        """Lay the weights out for the kernels of the device, as `lay_out_linears` does, the last matrix too.

        The model's plain weights are gone afterwards.
        """
        lay_out_linears(self.model, quantization, self.memory.keys.device, self.memory.geometry.dtype)
