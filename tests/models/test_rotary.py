"""Angles that are looked up are those that the model computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from resispec.models.attention import StepContext
from resispec.models.base import Segment, StepInputs
from resispec.models.kv import KVGeometry, KVMemory
from resispec.models.rotary import RotaryTable

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}


def step(positions: list[int], dtype: torch.dtype) -> StepContext:
    """Requests of one token each."""
    count, rows = len(positions), max(positions) + 1
    places = torch.arange(count)
    segments = tuple(Segment(i, 1, 0, position + 1) for i, position in enumerate(positions))
    memory = KVMemory(KVGeometry(1, 1, 16, 16, 32, dtype), rows, CPU)
    return StepContext(memory, StepInputs(places, torch.tensor(positions), places, segments, places))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaling", [None, YARN, DYNAMIC])
def test_angles(tiny: Any, dtype: torch.dtype, scaling: dict[str, Any] | None) -> None:
    shape = {} if scaling is None else {"rope_parameters": scaling}
    rotary = LlamaRotaryEmbedding(tiny.model(0, **shape).config)
    table, hidden = RotaryTable(rotary), torch.zeros(1, 32, dtype=dtype)
    for positions in ([0, 5], [3], [40, 1023], [1024, 7], [5000], [2]):
        here = step(positions, dtype)
        cos, sin = table.rotation(hidden, here)
        expected = rotary(hidden[None], torch.tensor(positions)[None])
        assert torch.equal(cos, expected[0])
        assert torch.equal(sin, expected[1])
        ours, signed = here.rotation(cos, sin)
        half = sin.shape[-1] // 2
        assert torch.equal(ours, cos[0][:, None])
        assert torch.equal(signed[..., :half], -sin[0][:, None, :half])
        assert torch.equal(signed[..., half:], sin[0][:, None, half:])
