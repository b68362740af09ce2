"""Which kernel a step's attention runs on."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from resispec.models.base import StepInputs
from resispec.models.kv import FLEX, ROWS, KVGeometry, KVMemory
from resispec.models.native import native_kernels

from .flex import FlexAttention
from .gathered import GatheredAttention
from .rows import RowAttention
from .segments import SegmentAttention


class Kernel(Protocol):
    """The attention of one step."""

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, key dim] -> [N, query heads, value dim]."""
        ...


def suits(attention: str, geometry: KVGeometry) -> bool:
    """Whether there is a kernel for this way to read a KV memory of this geometry."""
    if attention != ROWS:
        return True
    kernels = native_kernels()
    same = geometry.key_dim == geometry.value_dim
    return kernels is not None and same and kernels.attends(geometry.dtype, geometry.key_dim)


def kernel_for(memory: KVMemory, inputs: StepInputs) -> Kernel:
    """How ``memory`` is to be read, or a way that the host need not plan, where the step comes unplanned."""
    if memory.attention == FLEX:
        return FlexAttention.of(memory, inputs)
    if inputs.visibility is not None:
        return GatheredAttention(memory, inputs.visibility)
    if memory.attention == ROWS and (kernels := native_kernels()) is not None:
        return RowAttention(memory, inputs, kernels)
    return SegmentAttention(memory, inputs)
