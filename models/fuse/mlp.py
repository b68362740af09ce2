"""A gated feed-forward block with one product for gate and up."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from resispec.models.native import KINDS, native_kernels

from .activation import activation_name
from .linear import join


class FusedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, gate_up: nn.Module, down: nn.Module, activation: Any) -> None:
        super().__init__()
        self.gate_up_proj = gate_up
        self.down_proj = down
        self.activation = activation
        self._kernels = native_kernels() if activation_name(activation) == "silu" else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., H] -> [..., H]."""
        out: Tensor = self.down_proj.forward(self.inner(x.reshape(-1, x.shape[-1])))
        return out.view(x.shape)

    def inner(self, x: Tensor) -> Tensor:
        """What `down` reads. x: [N, H] -> [N, I]."""
        both = self.gate_up_proj.forward(x)
        if self._kernels is not None and both.dtype in KINDS and both.device.type == "cpu":
            return self._kernels.silu_mul(both)
        gate, up = both.chunk(2, dim=-1)
        inner: Tensor = self.activation(gate) * up
        return inner


def fused_mlps(module: Any) -> list[FusedMLP]:
    """What ``module`` may be; empty for one that does not look like a gated block with two matrices."""
    if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return []
    joined = join([module.gate_proj, module.up_proj])
    return [] if joined is None else [FusedMLP(joined, module.down_proj, module.act_fn)]
