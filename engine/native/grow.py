"""The compiled kernel of ``grow.h``: a level of half-grown trees in one pass."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

import torch

from resispec.models.device import device_for
from resispec.models.native import best_built

_READ = ("logits", "vocab_ids", "temperature", "uniforms", "top_k", "top_p", "min_p")
_TREES = ("frontier", "known", "log_chances", "roots", "kv_starts", "tokens", "parents", "visible", "scores")
_WRITTEN = (
    *("child_tokens", "num_head", "num_tail", "tail_ids", "tail_probs", "tail_index", "children"),
    *("next", "inputs", "masks"),
)
_NUMBERS = (
    *("trees", "width", "slots", "size", "stride", "uniform_stride", "head", "tail", "known_width", "first"),
    *("nodes", "law", "ranked", "spare", "next_width", "depth", "adaptive", "shared", "distinct"),
    "shares_nodes",
)


class LevelArguments(ctypes.Structure):
    """``Level`` of grow.h, which says what each of them is: addresses of tensors, then numbers."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_READ, *_TREES, *_WRITTEN)),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class GrowKernel:
    """Takes tensors on the CPU, of the dtypes that grow.h says."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a library that cannot be loaded or was built before there was this kernel."""
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        function = getattr(library, "resispec_grow", None)
        if function is None:
            raise OSError(f"{path} has no resispec_grow; install again to build it")
        function.argtypes = [ctypes.c_void_p, ctypes.c_int]
        function.restype = None
        self._grow = function

    def grow(self, level: LevelArguments) -> None:
        self._grow(ctypes.addressof(level), torch.get_num_threads())


@lru_cache
def _built() -> GrowKernel | None:
    return best_built(Path(__file__).parent, GrowKernel)


def grow_kernel_for(device: torch.device) -> GrowKernel | None:
    """None where there is none, and torch's own operations do the work."""
    return _built() if device_for(device).runs_native else None
