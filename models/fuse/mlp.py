"""A gated feed-forward block with one product for gate and up."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .linear import join


class FusedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, gate_up: nn.Module, down: nn.Module, activation: Any) -> None:
        super().__init__()
        self.gate_up_proj = gate_up
        self.down_proj = down
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., H] -> [..., H]."""
        gate, up = self.gate_up_proj.forward(x.reshape(-1, x.shape[-1])).chunk(2, dim=-1)
        out: Tensor = self.down_proj.forward(self.activation(gate) * up)
        return out.view(x.shape)


def fused_mlps(module: Any) -> list[FusedMLP]:
    """What ``module`` may be; empty for one that does not look like a gated block with two matrices."""
    if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return []
    joined = join([module.gate_proj, module.up_proj])
    return [] if joined is None else [FusedMLP(joined, module.down_proj, module.act_fn)]
