"""The host's own processors."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from resispec.models.native import native_kernels

from .base import Numbers

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """A `Device` that has done what it was told when the call returns."""

    device: torch.device
    memory_share = 0.4  # the machine has other users
    step_nodes = 8  # a CPU is soon busy with them
    usual_tree = (4, 2)
    quantizes = True
    compiles = True
    reads_freely = True
    row_block = 8
    runs_native = True
    generates_kernels = False  # that takes a C++ compiler

    @classmethod
    def count(cls) -> int:
        return 1

    @property
    def description(self) -> str:
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            lines = []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.processor() or platform.machine()

    @property
    def attentions(self) -> tuple[str, ...]:
        return ("segments",) if native_kernels() is None else ("rows", "segments")

    @property
    def shortcomings(self) -> tuple[str, ...]:
        if native_kernels() is not None:
            return ()
        return (
            "The kernels for CPUs were not built, so steps take longer; with a C++ compiler, install again.",
        )

    @property
    def default_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.packs(torch.bfloat16) else torch.float32

    def packs(self, dtype: torch.dtype) -> bool:
        """Bfloat16, where oneDNN supports it."""
        return (
            dtype == torch.bfloat16
            and torch.backends.mkldnn.is_available()
            and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )

    def free_memory(self) -> int:
        """Within the container's limit."""
        free = int(psutil.virtual_memory().available)
        try:
            limit = (_CGROUP / "memory.max").read_text().strip()
            used = int((_CGROUP / "memory.current").read_text())
        except (OSError, ValueError):
            return free
        return free if limit == "max" else max(0, min(free, int(limit) - used))

    def synchronize(self) -> None:
        """Nothing is under way."""

    def clock(self) -> HostClock:
        return HostClock()

    def recorder(self) -> None:
        """A CPU hands work over to nobody."""

    def put(self, values: Numbers, dtype: torch.dtype | None = None) -> Tensor:
        return host_tensor(values, dtype)


def host_tensor(values: Numbers, dtype: torch.dtype | None) -> Tensor:
    """As `Device.put` makes it, on the host. An array keeps its memory."""
    if isinstance(values, np.ndarray):
        return torch.as_tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype or torch.long)


class HostClock:
    """Marks are moments of the host."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in pairwise(self._times)]
