"""RMSNorm in one kernel instead of transformers' seven."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resispec.models.native import KINDS, native_kernels


class FusedRMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * w`` over the last axis, rounded once (Zhang and Sennrich 2019).

    torch composes it of small operations on a CPU, where it has a kernel for LayerNorm. ``[x, -x]`` has
    the mean 0 and the mean square of ``x``, so the first half of its LayerNorm is the RMSNorm of ``x``.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        """weight: [H] float32, what is multiplied with in the end."""
        super().__init__()
        self._shape = (weight.shape[0],)
        self.eps = eps
        self.weight = weight
        self._kernels = native_kernels() if weight.device.type == "cpu" else None
        self._twice = torch.cat([weight, weight]) if weight.device.type == "cpu" else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., H] -> [..., H] of the same dtype."""
        if self._kernels is not None and x.dtype in KINDS:
            return self._kernels.rms_norm(x.contiguous(), self.weight, self.eps)
        if self._twice is None:
            return F.rms_norm(x.float(), self._shape, self.weight, self.eps).to(x.dtype)
        (size,) = self._shape
        both = torch.cat((x, -x), dim=-1)
        return torch.layer_norm(both, (2 * size,), self._twice, None, self.eps).narrow(-1, 0, size)


def fused_norms(module: Any) -> list[FusedRMSNorm]:
    """What ``module`` may be: some families multiply with the weight, some with one plus the weight.

    Empty for a module that does not look like an RMSNorm.
    """
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or weight is None or weight.dim() != 1 or eps is None:
        return []
    plain = weight.detach().float()
    return [FusedRMSNorm(plain, float(eps)), FusedRMSNorm(1.0 + plain, float(eps))]
