"""The contract of layers that draft from the target's states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..kv import KVGeometry
from .tap import StateTap

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(q [..., N, Hq, D], k [..., N, Hkv, D], v [..., N, Hkv, D]) -> [..., N, Hq, D]``; scale ``D ** -0.5``.
Keys and values are those of the new tokens; the callable knows the earlier ones and who may see what."""


class StateHead(nn.Module, ABC):
    """Layers that read, at every position, a token and a state of the position before it: the target's, or
    down a tree their own. What they give is such a state, from which logits are read.
    """

    skips_first = False  # it has never seen a text's first token, before which there is no state

    @property
    @abstractmethod
    def max_positions(self) -> int:
        """Positions it can encode."""

    @abstractmethod
    def geometry(self, dtype: torch.dtype) -> KVGeometry:
        """What one row of its KV memory holds; ``hidden_size`` is the width of the states."""

    @abstractmethod
    def embedding(self, target: Any) -> nn.Module:
        """Token ids ``[N]`` -> ``[N, H]``: its own or that of ``target``, a transformers model."""

    @abstractmethod
    def readout(self, target: Any, vocab_ids: Tensor | None, dtype: torch.dtype) -> nn.Sequential:
        """States ``[N, H]`` -> logits ``[N, V]`` of ``vocab_ids``, or of all ids: its own or the target's
        output matrix. Nothing else holds its layers but the head itself, so that they may be laid out anew.
        """

    def tap(self, target: Any) -> StateTap | None:  # noqa: ARG002  most need none
        """Where in ``target`` its states are; None: they are the last ones, which the output matrix reads."""
        return None


def output_layer(matrix: Tensor) -> nn.Linear:
    """A layer of its own around rows ``[V, H]`` of an output matrix, whose memory they share."""
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(matrix.detach(), requires_grad=False)
    return layer
