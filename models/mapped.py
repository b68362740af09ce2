"""Weights that are read from mapped files, and the memory that reading them takes."""

from __future__ import annotations

import ctypes
import mmap
import sys
from bisect import bisect_right
from dataclasses import dataclass

import psutil
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """The mappings that weights of a model lie in: address and bytes, and a weight that keeps them mapped.

    What has been read of a mapped file stays resident beside what is made of it: fused or packed weights.
    """

    mappings: tuple[tuple[int, int, Tensor], ...] = ()

    @classmethod
    def of(cls, model: nn.Module) -> MappedWeights:
        """Only Linux tells; elsewhere there are none."""
        if sys.platform != "linux":
            return cls()
        regions: list[tuple[int, int]] = []
        for region in psutil.Process().memory_maps(grouped=False):
            # What was written to in memory, and so differs from the file, would be lost.
            if region.path.startswith("/") and not (region.anonymous or region.swap):
                first, last = (int(address, 16) for address in region.addr.split("-"))
                regions.append((first, last - first))
        regions.sort()
        starts = [first for first, _ in regions]
        found: dict[int, Tensor] = {}
        for parameter in model.parameters():
            place = bisect_right(starts, parameter.data_ptr()) - 1
            if place >= 0 and parameter.data_ptr() < sum(regions[place]):
                found[place] = parameter.detach()
        return cls(tuple((*regions[place], weight) for place, weight in found.items()))

    def release(self) -> None:
        """Give back the pages that have been read. Who reads on gets them from the file again."""
        if not self.mappings:
            return
        advise = ctypes.CDLL(None).madvise
        for address, size, _ in self.mappings:
            advise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
