"""Linear layers with weights laid out for a CPU's kernels, our own or oneDNN's, put in place of `nn.Linear`.

An unpacked bfloat16 product re-orders its weight on every call, which is most of a small model's step.
The packed product gives the same numbers; docs/performance.md has the ratios.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .mapped import MappedWeights
from .native.products import GROUP, MatrixArguments, NativeProducts, native_products

_KEPT_KERNELS = 192
_CAPACITIES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")


def bound_kernel_cache() -> None:
    """Let PyTorch and oneDNN keep fewer kernels than they do. Call it before the process's first product.

    They make one for every shape and number of rows, of half a megabyte or more, and keep 1,024: a server
    that has met prompts of all lengths would have grown by as much as a small model. Both keep them, so both
    must let go. The user's own setting wins.
    """
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(_KEPT_KERNELS))


class NativeLinear(nn.Module):
    """``y = x W^T + b`` in kernels of our own, in bfloat16. Inference only; the plain weight is not kept.

    Or, with weights of 8 bits, ``y = s (C - 128) x' + b``, where ``x'`` is ``x`` rounded to 8 bits too, 32
    numbers at a time: `models/native/codes.h`.
    """

    def __init__(self, linear: nn.Linear, products: NativeProducts, *, coded: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scales: Tensor | None = None
        if coded:
            self.weight, self.scales = products.codes(linear.weight)
        else:
            self.weight = products.panels(linear.weight)
        bias: Tensor | None = linear.bias
        self.bias = None if bias is None else bias.detach().contiguous()
        self.arguments = MatrixArguments(
            self.weight.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            None if self.scales is None else self.scales.data_ptr(),
            self.in_features,
            self.out_features,
        )
        self._products = products

    def extra_repr(self) -> str:
        """What tells cost tables apart."""
        return "bfloat16" if self.scales is None else "int8"

    @staticmethod
    def fits(linear: nn.Module, *, coded: bool = False) -> bool:
        """Whether it is one that the kernels take; coded: with weights of 8 bits."""
        multiple = GROUP if coded else 2
        return (
            type(linear) is nn.Linear
            and linear.weight.dtype is torch.bfloat16
            and not linear.in_features % multiple
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., K] -> [..., outputs], bfloat16."""
        flat = x.reshape(-1, self.in_features).to(torch.bfloat16).contiguous()
        output = self._products.multiply(flat, self.arguments)
        return output if x.dim() == 2 else output.view(*x.shape[:-1], self.out_features)


class PackedLinear(nn.Module):
    """``y = x W^T + b`` with ``W`` packed by oneDNN. Inference only; the plain weight is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._dtype = linear.weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        bias: Tensor | None = linear.bias
        self.bias = None if bias is None else bias.detach()
        self._product = torch.ops.mkldnn._linear_pointwise.default  # looked up once, not in every step

    def forward(self, x: Tensor) -> Tensor:
        flat = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        if flat.dtype is not self._dtype:
            flat = flat.to(self._dtype)
        output: Tensor = self._product(flat, self.weight, self.bias, "none", [], "")
        return output if x.dim() == 2 else output.view(*x.shape[:-1], self.out_features)


def pack_linears(model: nn.Module, *, native: bool = True) -> int:
    """Pack every `nn.Linear` of ``model`` in place; returns how many. Weights must be final.

    native: by kernels of our own where there are some for it.
    """
    products = native_products() if native else None

    def pack(linear: nn.Linear) -> nn.Module:
        if products is not None and NativeLinear.fits(linear):
            return NativeLinear(linear, products)
        return PackedLinear(linear)

    return replace_linears(model, pack)


def replace_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module | None]) -> int:
    """Put ``make(linear)`` in the place of every `nn.Linear`, where it is not None; returns how many.

    One at a time, so that the weights of one at most are there twice.
    """
    replaced = 0
    plain = MappedWeights.of(model)
    for module in model.modules():  # no list of them, which would keep the plain ones alive
        for name in [name for name, _ in module.named_children()]:
            child = getattr(module, name)
            if type(child) is nn.Linear and (new := make(child)) is not None:
                setattr(module, name, new)
                replaced += 1
                plain.release()
    return replaced
