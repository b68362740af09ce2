"""Which kernel a step's attention runs on."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from resispec.models.base import StepInputs
from resispec.models.kv import FLEX, KVMemory

from .flex import FlexAttention
from .gathered import GatheredAttention


class Kernel(Protocol):
    """The attention of one step. Nothing it does depends on values that are on the device."""

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, key dim] -> [N, query heads, value dim]."""
        ...


def kernel_for(memory: KVMemory, inputs: StepInputs) -> Kernel | None:
    """None: the step is attended segment by segment, in calls that the host plans."""
    if memory.attention == FLEX:
        return FlexAttention.of(memory, inputs)
    return None if inputs.visibility is None else GatheredAttention(memory, inputs.visibility)
