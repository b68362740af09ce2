"""Weights as small integers: less to read for every step.

Round to nearest, no data needed. One set of weights serves plain decoding, verification and the states a
draft head reads: an integer model beside a full one would be another model, and not exact together.

In kernels of our own the inputs of a product are rounded to 8 bits, too; in those of torch they and the
products have the model's own number format.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .native.products import native_products
from .pack import NativeLinear, replace_linears

GROUP = 32  # weights of a row that share a scale and an offset, in int4
_MULTIPLE = 16  # rows of an int4 matrix: what torch's kernel lays out together
_VECTOR = 16  # columns of an int8 matrix: torch's kernel reads so many at a time, beyond the end if need be
_FEW_ROWS = 16  # up to here the integer kernels are the quicker ones; they take time for every row


class Int8Linear(nn.Module):
    """``y = x (s * W8)^T + b``: ``W8 [out, in]`` int8, one scale ``s`` a row, ``max |W| / 127``."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        # Rounded first: the integers must belong to the scale that is multiplied with.
        self.scale = scale.to(linear.weight.dtype).clamp_min(torch.finfo(linear.weight.dtype).tiny)
        rounded = torch.round(weight / self.scale.float()[:, None])
        self.weight = rounded.clamp_(-127, 127).to(torch.int8)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] -> [..., out]."""
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        if flat.shape[0] <= _FEW_ROWS and self.in_features % _VECTOR == 0:
            output: Tensor = torch._weight_int8pack_mm(flat, self.weight, self.scale)
        else:
            output = F.linear(flat, self.weight.to(flat.dtype)) * self.scale
        if self.bias is not None:
            output = output + self.bias
        return output.view(*x.shape[:-1], -1)


class Int4Linear(nn.Module):
    """``y = x W^T + b`` with ``W = (W4 - 8) s + z`` for every `GROUP` weights of a row: 4 bits each.

    ``s`` and ``z`` span the group from its least to its greatest weight in 15 steps.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Raises ValueError for a shape that torch's kernel does not take."""
        super().__init__()
        rows, columns = linear.weight.shape
        if not fits_int4(linear):
            raise ValueError(f"a matrix of {rows} x {columns} is not made of {_MULTIPLE} x {GROUP} blocks")
        dtype = linear.weight.dtype
        grouped = linear.weight.detach().float().view(rows, -1, GROUP)
        least, greatest = grouped.amin(dim=2), grouped.amax(dim=2)
        scale = ((greatest - least) / 15).clamp_min(torch.finfo(dtype).tiny).to(dtype)
        zero = (least + 8 * scale.float()).to(dtype)
        steps = torch.round((grouped - zero.float()[..., None]) / scale.float()[..., None]) + 8
        integers = steps.clamp_(0, 15).to(torch.int32).view(rows, columns)
        self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
        self._scale_and_zero = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
        self._bias = linear.bias
        self.out_features = rows

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] -> [..., out]."""
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        output: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            flat, self._weight, GROUP, self._scale_and_zero
        )
        if self._bias is not None:
            output = output + self._bias
        return output.view(*x.shape[:-1], -1)


def fits_int4(linear: nn.Linear) -> bool:
    """Whether the matrix is made of whole groups and blocks."""
    return linear.in_features % GROUP == 0 and linear.out_features % _MULTIPLE == 0


def quantize_linears(
    model: nn.Module, quantization: str, *, exact: nn.Module | None = None, native: bool = True
) -> tuple[str, ...]:
    """Quantise the linear layers of ``model`` in place.

    quantization: "int8" or "int4". exact: one that is left as it is. native: int8 in kernels of our own,
    for those that these take. Notes for whoever serves the model come back.
    """
    products = native_products() if native else None
    kept: list[nn.Linear] = []

    def make(linear: nn.Linear) -> nn.Module | None:
        if linear is exact:
            return None
        if quantization == "int8" and products is not None and NativeLinear.fits(linear, coded=True):
            return NativeLinear(linear, products, coded=True)
        if quantization == "int8":
            return Int8Linear(linear)
        if fits_int4(linear):
            return Int4Linear(linear)
        kept.append(linear)
        return None

    replace_linears(model, make)
    if not kept:
        return ()
    note = (
        f"{len(kept)} matrices keep their number format: int4 takes multiples of {_MULTIPLE} rows and "
        f"{GROUP} columns."
    )
    return (note,)
