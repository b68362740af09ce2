"""A draft head for drafting: the parts that quick targets are made of, around the head's own weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resispec.models.attention import StepContext
from resispec.models.fuse.attention import FusedAttention
from resispec.models.fuse.layer import FusedLayer
from resispec.models.fuse.linear import join
from resispec.models.fuse.mlp import FusedMLP
from resispec.models.fuse.norm import FusedRMSNorm

from .base import output_layer
from .module import HeadModule, LayerReader, rotary


class FusedReader(nn.Module):
    """Gives what its reader gives: the norms of all layers in one kernel, their scales within the matrix."""

    def __init__(self, reader: LayerReader) -> None:
        super().__init__()
        weight, scale = reader.proj.weight.detach(), reader.scale.detach()
        self._size = scale.shape[1]
        self.norm = FusedRMSNorm(torch.ones(self._size, device=weight.device), reader.eps)
        self.proj = output_layer((weight.float() * scale.float().flatten()).to(weight.dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """As `LayerReader.forward`."""
        normed = self.norm.forward(inputs.unflatten(-1, (-1, self._size)))
        out: Tensor = self.proj.forward(normed.flatten(-2))
        return out


class FusedHead(nn.Module):
    """Gives what its head gives, in fewer and larger operations."""

    def __init__(self, head: HeadModule) -> None:
        """Takes the layers of ``head`` over: it cannot run by itself afterwards."""
        super().__init__()
        config = head.config
        qkv = join([head.q_proj, head.k_proj, head.v_proj])
        gate_up = join([head.gate_proj, head.up_proj])
        assert qkv is not None, "a head's layers are plain ones"
        assert gate_up is not None, "a head's layers are plain ones"
        self.embedding_norm, self.hidden_norm = _fused(head.embedding_norm), _fused(head.hidden_norm)
        self.fuse = head.fuse
        attention = FusedAttention(
            qkv,
            head.o_proj,
            None,
            layer=0,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scaling=config.head_dim**-0.5,
            window=None,
        )
        norms = _fused(head.attention_norm), _fused(head.mlp_norm)
        self.layer = FusedLayer(attention, FusedMLP(gate_up, head.down_proj, nn.SiLU()), norms, None)
        self.norm = _fused(head.norm)
        weight = head.fuse.weight
        # Of every position it can encode: angles take longer to compute than to look up.
        positions = torch.arange(config.max_positions, device=weight.device)
        self._cos, self._sin = (
            table[:, 0] for table in rotary(positions, config.head_dim, config.rope_theta, weight.dtype)
        )
        if isinstance(head.reader, LayerReader):
            head.reader = FusedReader(head.reader)  # not our own: what taps the target runs it
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "fuse", "gate_proj", "up_proj", "down_proj"):
            delattr(head, name)

    def run(self, token_embeddings: Tensor, hidden: Tensor, positions: Tensor, step: StepContext) -> Tensor:
        """As `HeadModule.forward`, for the tokens ``[N, H]`` of ``step``, whose KV rows are written."""
        joined = [self.embedding_norm.forward(token_embeddings), self.hidden_norm.forward(hidden)]
        x: Tensor = self.fuse.forward(torch.cat(joined, dim=-1))
        cos, sin = self._cos.index_select(0, positions)[None], self._sin.index_select(0, positions)[None]
        return self.norm.forward(self.layer.run(x, (cos, sin), step))


def _fused(norm: nn.RMSNorm) -> FusedRMSNorm:
    assert norm.eps is not None
    return FusedRMSNorm(norm.weight.detach().float(), norm.eps)
