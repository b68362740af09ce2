"""Products with weights and whole decoder layers in the kernels of ``products.h`` and ``layer.h``.

They take bfloat16, its weights rounded to 8 bits or not, and a processor that multiplies pairs of it
(AVX512-BF16). One with tiles (AMX) is left to oneDNN, which uses them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .library import NativeKernels, native_kernels

PANEL = 32  # outputs side by side
GROUP = 32  # inputs that are rounded with one scale, for weights of 8 bits
_ROWS_AT_ONCE = 64 * PANEL  # of a matrix that is laid out
_ZERO = 128  # the code of a weight of 0
_POINTER, _SIZE, _REAL, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int


class MatrixArguments(ctypes.Structure):
    """``Matrix`` of products.h."""

    _fields_ = (
        ("panels", _POINTER),
        ("bias", _POINTER),
        ("scales", _POINTER),
        ("size", _SIZE),
        ("outputs", _SIZE),
    )


class LayerArguments(ctypes.Structure):
    """``Layer`` of layer.h."""

    _fields_ = (
        ("first_norm", _POINTER),
        ("second_norm", _POINTER),
        ("qkv", MatrixArguments),
        ("output", MatrixArguments),
        ("gate_up", MatrixArguments),
        ("down", MatrixArguments),
        ("size", _SIZE),
        ("heads", _SIZE),
        ("kv_heads", _SIZE),
        ("dim", _SIZE),
        ("window", _SIZE),
        ("first_eps", _REAL),
        ("second_eps", _REAL),
        ("scaling", _REAL),
    )


class StepArguments(ctypes.Structure):
    """``Step`` of layer.h."""

    _fields_ = (
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("rows", _POINTER),
        ("positions", _POINTER),
        ("segments", _POINTER),
        ("tokens", _SIZE),
        ("count", _SIZE),
    )


def _by_panels(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of ``weight`` [outputs, K] in whole panels, and which panels: zeros fill up the last.

    A few at a time, so that an output matrix, the largest of a small model, is not there a third time.
    """
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        rows = weight[first : first + _ROWS_AT_ONCE]
        if missing := -rows.shape[0] % PANEL:
            rows = F.pad(rows, (0, 0, 0, missing))
        yield slice(first // PANEL, (first + rows.shape[0]) // PANEL), rows


class NativeProducts:
    """Every method takes contiguous bfloat16 tensors on the CPU, and does not look."""

    def __init__(self, kernels: NativeKernels) -> None:
        library = kernels.library
        self._multiply = library.resispec_multiply
        self._multiply.argtypes = [_POINTER] * 3 + [_SIZE, _FLAG]
        self._multiply.restype = None
        self._layers = library.resispec_layers
        self._layers.argtypes = [_POINTER] * 4 + [_SIZE, _POINTER, _SIZE, _POINTER, _FLAG]
        self._layers.restype = _FLAG

    def panels(self, weight: Tensor) -> Tensor:
        """``weight`` [outputs, K], K even, as products read it: [panels, K / 2, 32, 2]."""
        outputs, size = weight.shape
        panels = weight.new_empty(-(-outputs // PANEL), size // 2, PANEL, 2)
        for place, rows in _by_panels(weight.detach()):
            panels[place] = rows.reshape(-1, PANEL, size // 2, 2).transpose(1, 2)
        return panels

    def codes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """``weight`` [outputs, K], K in whole `GROUP`s, in 8 bits: ``s (C - 128)``, rounded to the nearest.

        Panels [panels, K / 4, 32, 4] uint8 of ``C``, and ``s`` [32 panels] float32, ``max |W| / 127`` of
        each output.
        """
        outputs, size = weight.shape
        count = -(-outputs // PANEL)
        panels = torch.empty(count, size // 4, PANEL, 4, dtype=torch.uint8)
        scales = torch.empty(count, PANEL)
        for place, rows in _by_panels(weight.detach()):
            exact = rows.float()
            scale = (exact.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
            codes = torch.round(exact / scale[:, None]).add_(_ZERO).to(torch.uint8)
            panels[place] = codes.view(-1, PANEL, size // 4, 4).transpose(1, 2)
            scales[place] = scale.view(-1, PANEL)
        return panels, scales.view(-1)

    def multiply(self, x: Tensor, matrix: MatrixArguments) -> Tensor:
        """``x W^T + b``. x: [N, K] -> [N, outputs]."""
        out = x.new_empty(x.shape[0], matrix.outputs)
        self._multiply(
            out.data_ptr(),
            x.data_ptr(),
            ctypes.addressof(matrix),
            x.shape[0],
            torch.get_num_threads(),
        )
        return out

    def run_layers(
        self,
        hidden: Tensor,
        keys: Tensor,
        values: Tensor,
        layers: ctypes.Array[LayerArguments],
        step: StepArguments,
    ) -> Tensor:
        """Layers that follow each other, alike in all sizes.

        hidden: [N, H] -> [N, H]; keys, values: [len(layers), KV rows, KV heads, D], where they write.
        """
        out = torch.empty_like(hidden)
        done: Any = self._layers(
            out.data_ptr(),
            hidden.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            keys.stride(0),
            ctypes.addressof(layers),
            len(layers),
            ctypes.addressof(step),
            torch.get_num_threads(),
        )
        assert done == 0, "the kernels were not built for heads of this size"
        return out


@lru_cache
def native_products() -> NativeProducts | None:
    """None where they were not built or the processor has no use for them."""
    kernels = native_kernels()
    if kernels is None or torch.cpu._is_amx_tile_supported():
        return None
    try:
        return NativeProducts(kernels) if kernels.library.resispec_has_products() else None
    except AttributeError:  # built from older sources
        return None
