"""Attention for training a head on its own outputs, several levels deep, over whole texts at once.

Served, the head meets the target's states at committed positions and its own outputs along a branch.
Training repeats that for every position of a text together (training-time test, EAGLE-3, Li et al. 2025,
arXiv 2503.01840; HASS, Zhang et al. 2024, arXiv 2408.15766). Pass ``s`` (1, 2, ..) computes at position ``i``
the node that lies ``s - 1`` levels below the root at ``i - s + 1``. It sees, and nothing else:

- keys of pass 1 at positions ``j <= i - s + 1``: the committed text and the root;
- the key of pass ``r`` at position ``i - s + r`` for ``r = 2 .. s``: its ancestors and itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..head.module import HeadModule


class UnrolledAttention:
    """The attention of one batch; call it once a pass, in order.

    Texts are padded at the right, where the causal order keeps the padding out of sight.
    """

    def __init__(self) -> None:
        self._passes: list[tuple[Tensor, Tensor]] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``q [B, N, Hq, D]``, ``k, v [B, N, Hkv, D]`` of the next pass -> ``[B, N, Hq, D]``."""
        self._passes.append((k, v))
        depth, (first_k, first_v) = len(self._passes), self._passes[0]
        length = q.shape[1]
        grouped = (
            q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1]) * q.shape[-1] ** -0.5
        )  # [B, N, Hkv, G, D]
        scores = torch.einsum("bnhgd,bmhd->bhgnm", grouped, first_k)
        position = torch.arange(length, device=q.device)
        visible = position[None, :] <= position[:, None] - (depth - 1)
        columns = [scores.masked_fill(~visible, -torch.inf)]
        for number, (own_k, _) in enumerate(self._passes[1:], start=2):
            score = torch.einsum("bnhgd,bnhd->bhgn", grouped, _shift(own_k, depth - number))
            columns.append(score.masked_fill(position < depth - number, -torch.inf)[..., None])
        weights = torch.cat(columns, dim=-1).softmax(dim=-1, dtype=torch.float32).to(v.dtype)
        out = torch.einsum("bhgnm,bmhd->bnhgd", weights[..., :length], first_v)
        for number, (_, own_v) in enumerate(self._passes[1:], start=2):
            weight = weights[..., length + number - 2].permute(0, 3, 1, 2)  # [B, N, Hkv, G]
            out = out + weight[..., None] * _shift(own_v, depth - number)[:, :, :, None]
        return out.flatten(2, 3)


def _shift(x: Tensor, places: int) -> Tensor:
    """``x [B, N, ..]`` moved ``places`` to the right, zeros at the left."""
    if places == 0:
        return x
    return torch.cat([torch.zeros_like(x[:, :places]), x[:, :-places]], dim=1)


def previous(hidden: Tensor) -> Tensor:
    """``hidden [B, N, H]`` one position earlier, as the head reads it: zeros at position 0."""
    return _shift(hidden, 1)


def head_states(
    module: HeadModule, embedded: Tensor, hidden: Tensor, passes: int, layer_inputs: Tensor | None = None
) -> list[Tensor]:
    """The head's states ``[B, N, H]`` of every pass over texts with the target's last states
    ``hidden [B, N, H]`` and, for a head that reads them, the inputs ``[B, N, K * H]`` of its layers.
    """
    positions = torch.arange(embedded.shape[1], device=embedded.device).expand(embedded.shape[:2])
    attention, states = UnrolledAttention(), []
    with torch.autocast(embedded.device.type, torch.bfloat16, enabled=embedded.dtype == torch.bfloat16):
        read = previous(module.joined(hidden, layer_inputs))
        for _ in range(passes):
            states.append(module(embedded, read, positions, attention))
            read = previous(states[-1])
    return states
