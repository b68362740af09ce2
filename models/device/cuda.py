"""One NVIDIA GPU, which works on while the host goes ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from .base import Numbers, Recording
from .cpu import host_tensor

T = TypeVar("T")
_WARM_UP = 2  # kernels are compiled and chosen by then, which cannot be recorded


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A `Device` whose work is handed over in the current stream."""

    device: torch.device
    attentions = ("flex", "segments")
    memory_share = 0.85
    step_nodes = 256  # it waits for the weights to be read anyway
    usual_tree = (16, 4)
    quantizes = False
    compiles = False
    reads_freely = False
    row_block = None
    runs_native = False
    generates_kernels = True
    shortcomings = ()

    @classmethod
    def count(cls) -> int:
        return int(torch.cuda.device_count())

    @property
    def description(self) -> str:
        return str(torch.cuda.get_device_name(self.device))

    @property
    def default_dtype(self) -> torch.dtype:
        with torch.cuda.device(self.device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16

    def packs(self, dtype: torch.dtype) -> bool:  # noqa: ARG002
        """No: its libraries take plain weights."""
        return False

    def free_memory(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def clock(self) -> CudaClock:
        return CudaClock(self.device)

    def recorder(self) -> CudaRecorder:
        return CudaRecorder(self.device)

    def put(self, values: Numbers, dtype: torch.dtype | None = None) -> Tensor:
        # The allocator of pinned memory keeps a block until the copy from it is done.
        return host_tensor(values, dtype).pin_memory().to(self.device, non_blocking=True)


class CudaClock:
    """Marks are events in the device's stream, so that a phase lasts until its last kernel is done."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._events.append(event)

    def seconds(self) -> list[float]:
        self._events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._events)]


class CudaRecorder:
    """Records CUDA graphs in one pool of memory: what one gives must be copied before another is replayed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], T]) -> Recording[T]:
        with torch.cuda.device(self._device):
            stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    run()
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                outputs = run()
        return Recording(outputs, graph.replay)
