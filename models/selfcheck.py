"""A model on the server's KV memory against the same model as transformers runs it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import ATTENTION_NAME, StepContext, register_attention, run_model
from .base import ModelError, Segment, StepInputs
from .causal import chunk_inputs
from .kv import SEGMENTS, KVGeometry, KVMemory


class SelfCheck:
    """Keeps the logits of a model's own plain forward, to be held against what is made of the model."""

    @torch.inference_mode()
    def __init__(self, model: Any, geometry: KVGeometry, max_positions: int) -> None:
        """model: as it was loaded."""
        self._model = model
        self._geometry = geometry
        self._device = next(model.parameters()).device
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._ids = [(7919 * i + 13) % self._vocabulary for i in range(min(24, max_positions))]
        self._plain = self._logits("eager")
        self._others = [self._logits(name) for name in ("sdpa",) if _can_use(model, name)]
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)

    @torch.inference_mode()
    def run(self, attention: str = SEGMENTS) -> None:
        """Run some tokens in two chunks, the second as a tree. Raises ModelError if the logits differ."""
        memory = KVMemory(self._geometry, len(self._ids) + 8, self._device, attention=attention)
        half = len(self._ids) // 2
        chunk = chunk_inputs(self._ids[:half], 0, self._device, kv_start=3)
        steps = [StepContext(memory, inputs) for inputs in (chunk, self._decoyed_chain(half, kv_start=3))]
        ours = torch.cat([run_model(self._model, step).logits[0] for step in steps]).float()
        error = min(self._difference(ours, plain) for plain in (self._plain, *self._others))
        limit = self._limit()
        if not error <= limit:
            raise ModelError(
                f"{type(self._model).__name__} gives other results on the server's KV memory than on its own "
                f"(relative difference {error:.1e}, allowed {limit:.0e}); it cannot be served"
            )

    def _logits(self, attention: str) -> Tensor:
        """[N, V] float32, by transformers' own forward."""
        self._model.set_attn_implementation(attention)
        token_ids = torch.tensor([self._ids], device=self._device)
        logits: Tensor = self._model(input_ids=token_ids, use_cache=False).logits[0]
        return logits.float()

    def _difference(self, logits: Tensor, plain: Tensor) -> float:
        return float((logits - plain).norm() / self._plain.norm().clamp_min(1e-9))

    def _limit(self) -> float:
        """Transformers' own ways of attention differ by rounding, in some models by a tenth in bfloat16."""
        if self._geometry.dtype == torch.float32:
            return 1e-3
        return max(5e-2, *(2 * self._difference(other, self._plain) for other in self._others), 0.0)

    def _decoyed_chain(self, start: int, *, kv_start: int) -> StepInputs:
        """A chain from ``start`` on, with a sibling before its first node that no other node may see."""
        ids, device = self._ids[start:], self._device
        count = len(ids)
        tokens = [(ids[0] + 1) % self._vocabulary, *ids]
        mask = torch.zeros(count + 1, start + count + 1, dtype=torch.bool, device=device)
        mask[:, :start] = True
        mask[0, start] = True
        mask[1:, start + 1 :] = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        positions = torch.tensor([start, *range(start, start + count)], device=device)
        return StepInputs(
            token_ids=torch.tensor(tokens, device=device),
            positions=positions,
            rows=kv_start + start + torch.arange(count + 1, device=device),
            segments=(Segment(0, count + 1, kv_start, start + count + 1, mask),),
            logits_index=torch.arange(1, count + 1, device=device),
        )


def _can_use(model: Any, attention: str) -> bool:
    try:
        model.set_attn_implementation(attention)
    except ValueError:  # what transformers raises for an architecture that lacks it
        return False
    return True
