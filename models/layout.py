"""Linear layers as the kernels of a device read them, their weights rounded or not."""

from __future__ import annotations

import torch
from torch import nn

from .device import device_for
from .fuse.native import go_native
from .pack import pack_linears
from .quantize import quantize_linears


def lay_out_linears(
    model: nn.Module,
    quantization: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    exact: nn.Module | None = None,
    native: bool = True,
) -> tuple[str, ...]:
    """Lay the weights of ``model``, on ``device`` in ``dtype``, out for the kernels there, in place.

    quantization: none, int8 or int4. exact: the one matrix whose weights are not rounded.
    native: in kernels of our own where there are some, whole layers if they can.
    The plain weights are gone afterwards. Notes for whoever serves it come back.
    """
    notes: tuple[str, ...] = ()
    if quantization != "none":
        notes = quantize_linears(model, quantization, exact=exact, native=native)
    if device_for(device).packs(dtype):
        pack_linears(model, native=native)
        go_native(model)
    return notes
