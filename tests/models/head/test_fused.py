"""A head made quick gives what it gave, along a text and down a tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resispec.models.base import Segment, StepInputs
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.fused import FusedReader
from resispec.models.head.module import HeadModule, LayerReader
from resispec.models.head.step import HeadStepModel
from resispec.models.kv import ROWS, SEGMENTS, KVMemory
from resispec.models.native import native_kernels

H, VOCABULARY = 64, 50
CONFIG = HeadConfig(
    H, 6, 2, 16, 40, 1e4, 1e-5, 128, 20, TargetFingerprint("tiny", VOCABULARY, H, "-", (0.0,))
)


class Target:
    """What a head shares with its target."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._embedding = nn.Embedding(VOCABULARY, H).to(dtype)

    def get_input_embeddings(self) -> nn.Module:
        return self._embedding

    def get_output_embeddings(self) -> nn.Module:
        return self._embedding


class Whole(HeadModule):
    """A head of a kind that is run as it stands."""


def steps_of(
    kind: type[HeadModule], dtype: torch.dtype, attention: str, quantization: str | None = None
) -> list[Tensor]:
    """States and logits of a text, and of two levels of a tree behind it that see their own branch.

    quantization: of weights that are laid out; None: they are as they come.
    """
    torch.manual_seed(0)
    head = kind(CONFIG)
    for weight in head.parameters():
        nn.init.normal_(weight, std=0.2) if weight.dim() > 1 else nn.init.uniform_(weight, 0.5, 1.5)
    target: Any = Target(dtype)
    memory = KVMemory(head.geometry(dtype), 40, torch.device("cpu"), attention=attention)
    model = HeadStepModel(head.to(dtype).requires_grad_(False), torch.arange(20), target, memory)
    if quantization is not None:
        model.lay_out(quantization)
    tree = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    outputs = []
    for start, count, positions, mask in (
        (0, 9, range(9), None),
        (9, 2, (9, 9), tree[:2, :2]),
        (11, 2, (10, 10), tree[2:]),
    ):
        inputs = StepInputs(
            torch.randint(VOCABULARY, (count,)),
            torch.tensor(list(positions)),
            torch.arange(start, start + count) + 3,
            (Segment(0, count, 3, start + count, mask),),
            torch.arange(count),
            torch.randn(count, H),
        )
        outputs += vars_of(model.forward(inputs))
    return outputs


def vars_of(output: Any) -> list[Tensor]:
    return [output.logits.double(), output.hidden.double()]


@pytest.mark.parametrize("attention", [SEGMENTS, ROWS])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_the_same_states(dtype: torch.dtype, tolerance: float, attention: str) -> None:
    if attention == ROWS and native_kernels() is None:
        pytest.skip("no kernels were built")
    fused, plain = steps_of(HeadModule, dtype, attention), steps_of(Whole, torch.float32, SEGMENTS)
    for ours, theirs in zip(fused, plain, strict=True):
        assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_laid_out_the_states_are_near(dtype: torch.dtype, quantization: str) -> None:
    """In whole layers of our own where there are some, else part by part."""
    attention = SEGMENTS if native_kernels() is None else ROWS
    ours = steps_of(HeadModule, dtype, attention, quantization)
    theirs = steps_of(Whole, torch.float32, SEGMENTS)
    errors = [float((one - other).norm() / other.norm()) for one, other in zip(ours, theirs, strict=True)]
    assert max(errors) <= (1e-4 if dtype is torch.float32 and quantization == "none" else 0.08)
    if dtype is torch.float32 and quantization == "int8":
        assert min(errors) > 1e-3  # it is rounded


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@torch.no_grad()
def test_a_fused_reader_reads_the_same(dtype: torch.dtype, tolerance: float) -> None:
    """Of layers whose inputs and scales differ in size."""
    torch.manual_seed(1)
    reader = LayerReader(replace(CONFIG, target_layers=(0, 3, 4)))
    nn.init.uniform_(reader.scale, 0.1, 9.0)
    inputs = torch.cat([torch.randn(2, 7, H) * size for size in (0.1, 4.0, 300.0)], dim=-1)
    fused, expected = (
        FusedReader(reader.to(dtype))(inputs.to(dtype)).double(),
        reader.float()(inputs).double(),
    )
    assert fused.shape == (2, 7, H)
    assert (fused - expected).norm() <= tolerance * expected.norm()
