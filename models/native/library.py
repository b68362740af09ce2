"""The compiled kernels of ``kernels.cpp``, bound by ctypes to what torch's tensors lie in.

They are built when the package is installed, if there is a C++ compiler, for each kind of processor that
may come to run it (setup.py). Without them the same work is done by torch's own operations, more of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

Kernels = TypeVar("Kernels")
KINDS = {torch.float32: 0, torch.bfloat16: 1}
_POINTER, _SIZE, _REAL, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_HEADS = (1, 2, 4, 5, 6, 8, 16)  # vectors of 16 numbers to a head, those that are built


class NativeKernels:
    """Every method takes contiguous tensors of one dtype of `KINDS` on the CPU, and does not look."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a library that cannot be loaded: one without torch's OpenMP, say."""
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        self.path = path
        self.library = library
        self._rms_norm = _bind(library.resispec_rms_norm, [_POINTER] * 3 + [_SIZE] * 2 + [_REAL])
        self._silu_mul = _bind(library.resispec_silu_mul, [_POINTER] * 2 + [_SIZE] * 2)
        self._rotate = _bind(library.resispec_rotate, [_POINTER] * 6 + [_SIZE] * 4)
        self._attend = _bind(
            library.resispec_attend, [_POINTER] * 5 + [_SIZE, _POINTER] + [_SIZE] * 5 + [_REAL]
        )

        self._move_rows = library.resispec_move_rows
        self._move_rows.argtypes = [_POINTER] + [_SIZE] * 3 + [_POINTER] * 2 + [_SIZE, _FLAG]
        self._move_rows.restype = None

    def attends(self, dtype: torch.dtype, dim: int) -> bool:
        """Whether `attend` is built for heads of ``dim`` numbers."""
        return dtype in KINDS and -(-dim // 16) in _HEADS

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * w``. x: [..., H]; weight: [H] float32."""
        out = torch.empty_like(x)
        size = x.shape[-1]
        self._rms_norm(
            out.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            x.numel() // size,
            size,
            eps,
            KINDS[x.dtype],
            torch.get_num_threads(),
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up``. gate_up: [N, 2 I] -> [N, I]."""
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._silu_mul(
            out.data_ptr(),
            gate_up.data_ptr(),
            rows,
            width // 2,
            KINDS[gate_up.dtype],
            torch.get_num_threads(),
        )
        return out

    def rotate(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Turn the queries of ``qkv`` in place; its keys, turned, and values go to their KV rows.

        qkv: [N, heads + 2 KV heads, D]; cos, sin: [N, 1, D], the first half of the sines negated;
        rows: [N] int64; keys, values: a layer's [KV rows, KV heads, D].
        """
        tokens, width, dim = qkv.shape
        kv_heads = keys.shape[1]
        self._rotate(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            rows.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            tokens,
            width - 2 * kv_heads,
            kv_heads,
            dim,
            KINDS[qkv.dtype],
            torch.get_num_threads(),
        )

    def attend(
        self,
        out: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        segments: Tensor,
        positions: Tensor,
        scaling: float,
        window: int | None,
    ) -> None:
        """Fill ``out`` [N, heads, D] for the tokens of ``segments``, and leave the others.

        query: [N, heads, D], of which tokens may lie further apart; keys, values: a layer's
        [KV rows, KV heads, D]; segments: [S, 6] int64, as `RowAttention` lays them out; positions: [N] int64.
        """
        _, heads, dim = out.shape
        self._attend(
            out.data_ptr(),
            query.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            segments.data_ptr(),
            segments.shape[0],
            positions.data_ptr(),
            heads,
            keys.shape[1],
            dim,
            query.stride(0),
            window or 0,
            scaling,
            KINDS[query.dtype],
            torch.get_num_threads(),
        )

    def move_rows(self, pools: Tensor, source: Tensor, destination: Tensor) -> None:
        """Copy rows of every layer's pool; every source is read before a destination is written.

        pools: [layers, rows, ..] of any dtype; source, destination: [n] int64.
        """
        self._move_rows(
            pools.data_ptr(),
            len(pools),
            pools.stride(0) * pools.element_size(),
            pools.stride(1) * pools.element_size(),
            source.data_ptr(),
            destination.data_ptr(),
            len(source),
            torch.get_num_threads(),
        )


def _bind(function: Any, arguments: list[Any]) -> Any:
    function.argtypes = [*arguments, _FLAG, _FLAG]  # in the end: the dtype's kind, threads
    function.restype = _FLAG
    return function


@lru_cache
def native_kernels() -> NativeKernels | None:
    """The best that were built and run on this processor; None where there are none."""
    return best_built(Path(__file__).parent, NativeKernels)


def best_built(folder: Path, load: Callable[[Path], Kernels]) -> Kernels | None:
    """What ``load`` makes of the best library in ``folder`` for this processor; None if it takes none.

    load: raises OSError for one that is not for this machine.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    variants = {"AVX2": ("avx2",), "DEFAULT": (), "NO AVX": ()}.get(capability, ("avx512", "avx2"))
    for variant in (*variants, "base"):
        for path in sorted(folder.glob(f"_{variant}.*")):
            try:
                return load(path)
            except (OSError, AttributeError):  # AttributeError: built from older sources
                continue
    return None
