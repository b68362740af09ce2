"""The contract of a device. Nothing outside this package asks what kind of device it runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
Numbers = Sequence[int] | Sequence[float] | Sequence[Sequence[int]] | Sequence[Sequence[float]] | NDArray[Any]


class Clock(Protocol):
    """Times the phases of a step where they run. Marking waits for nothing."""

    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        """Between each mark and the next. Waits for the last mark."""
        ...


@dataclass(frozen=True, slots=True)
class Recording(Generic[T]):
    """Work that was done once and can be done again at once, on the same memory."""

    outputs: T  # what it gave, in memory that `replay` writes anew
    replay: Callable[[], None]


class Recorder(Protocol):
    """Makes recordings, which share what memory they work in: one is replayed at a time."""

    def record(self, run: Callable[[], T]) -> Recording[T]:
        """Do the work of ``run``, which must read no tensor on the host and make none of the host's numbers.

        It is called several times. Raises RuntimeError for work that cannot be recorded.
        """
        ...


class Device(Protocol):
    """Where a pair runs: what is there, and how work is handed to it and timed.

    An instance is a value: it holds no memory of the device and may be made at any time.
    """

    @classmethod
    def count(cls) -> int:
        """How many devices of this kind there are; 0 where torch has no support for them."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def description(self) -> str:
        """What its maker calls it."""
        ...

    @property
    def default_dtype(self) -> torch.dtype:
        """bfloat16 where the hardware multiplies it, else what is exact and quick enough there."""
        ...

    @property
    def attentions(self) -> tuple[str, ...]:
        """How the KV memory may be read, see `KVMemory`: the first one that works is the best."""
        ...

    @property
    def memory_share(self) -> float:
        """Of the free memory, what the KV memory may take unasked: the rest is for activations."""
        ...

    @property
    def step_nodes(self) -> int:
        """Candidates that a step verifies at little extra cost, all requests together."""
        ...

    @property
    def usual_tree(self) -> tuple[int, int]:
        """Candidates and levels of a tree that usually pays for a request alone: docs/trees.md."""
        ...

    @property
    def quantizes(self) -> bool:
        """Whether there are kernels for integer weights."""
        ...

    @property
    def compiles(self) -> bool:
        """Whether a model's layers can be compiled for it."""
        ...

    @property
    def reads_freely(self) -> bool:
        """Whether the host may look at a tensor without waiting for work that is under way."""
        ...

    @property
    def row_block(self) -> int | None:
        """Rows as wide as a vocabulary to work on at a time, so that copies stay in cache; None: all."""
        ...

    @property
    def runs_native(self) -> bool:
        """Whether code of our own runs on its tensors where they lie, if it was built."""
        ...

    @property
    def generates_kernels(self) -> bool:
        """Whether kernels are written for it at run time, with what torch brings."""
        ...

    @property
    def shortcomings(self) -> tuple[str, ...]:
        """What makes steps take longer than they would have to: sentences for whoever serves on it."""
        ...

    def packs(self, dtype: torch.dtype) -> bool:
        """Whether linear layers of ``dtype`` run quicker as `PackedLinear`."""
        ...

    def free_memory(self) -> int:
        """Bytes that could be allocated now."""
        ...

    def synchronize(self) -> None:
        """Wait until all work handed over is done."""
        ...

    def clock(self) -> Clock: ...

    def recorder(self) -> Recorder | None:
        """None where a recording would gain nothing."""
        ...

    def put(self, values: Numbers, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers of the host as a tensor on the device, without waiting for its work.

        dtype: None: an array's own; of anything else, int64. Where ``torch.tensor(values, device=...)``
        or ``.to(device)`` waits for all work under way on a GPU, this does not.
        """
        ...
