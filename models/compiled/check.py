"""Compiled layers against the same layers as they were: the last test before they take over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from resispec.models.attention import StepContext, run_model
from resispec.models.base import ModelError, Segment, StepInputs
from resispec.models.causal import chunk_inputs
from resispec.models.fuse.layer import FusedLayer
from resispec.models.kv import KVGeometry, KVMemory

from .layer import CompiledLayer

_LIMITS = {torch.float32: 1e-3}
_ROUNDED = 5e-2  # of formats with fewer bits: transformers' own ways of attention differ by as much


@torch.inference_mode()
def check_compiled(
    model: Any, geometry: KVGeometry, layers: Sequence[FusedLayer], compiled: Sequence[CompiledLayer]
) -> None:
    """Run steps of every kind both ways, on KV memories of their own. Raises ModelError if they differ."""
    device = model.device
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    logits: list[Tensor] = []
    for chosen in ([None] * len(layers), compiled):
        memory = KVMemory(geometry, 64, device)
        for layer, own in zip(layers, chosen, strict=True):
            layer.compiled = own
        try:
            steps = [run_model(model, StepContext(memory, i)).logits[0] for i in _steps(vocabulary, device)]
        finally:
            for layer in layers:
                layer.compiled = None
        logits.append(torch.cat(steps).float())
    plain, ours = logits
    error = float((ours - plain).norm() / plain.norm().clamp_min(1e-9))
    limit = _LIMITS.get(geometry.dtype, _ROUNDED)
    if not error <= limit:
        raise ModelError(f"its logits differ by {error:.1e}, allowed are {limit:.0e}")


def _steps(vocabulary: int, device: torch.device) -> Iterator[StepInputs]:
    """A prompt, a tree, one token, one token of each of two requests."""
    ids = [(5417 * i + 29) % vocabulary for i in range(24)]
    yield chunk_inputs(ids[:9], 0, device, kv_start=3)
    mask = torch.ones(4, 13, dtype=torch.bool, device=device)
    mask[:, 9:] = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    tree = chunk_inputs(ids[9:13], 9, device, kv_start=3)
    yield StepInputs(
        tree.token_ids,
        torch.tensor([9, 10, 10, 11], device=device),
        tree.rows,
        (Segment(0, 4, 3, 13, mask),),
        tree.logits_index,
    )
    yield chunk_inputs(ids[13:14], 13, device, kv_start=3)
    yield chunk_inputs(ids[14:17], 0, device, kv_start=40)
    yield StepInputs(
        torch.tensor(ids[17:19], device=device),
        torch.tensor([14, 3], device=device),
        torch.tensor([17, 43], device=device),
        (Segment(0, 1, 3, 15), Segment(1, 1, 40, 4)),
        torch.arange(2, device=device),
    )
