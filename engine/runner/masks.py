"""The tokens allowed at the nodes of a step, for the requests that restrict them."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resispec.models.device import put

from ..grammar.base import Constraint, PackedSet
from ..sampling.masks import TokenMask, token_mask
from .batch import TargetBatch


@dataclass(frozen=True, slots=True)
class NodeMasks:
    """One set of allowed tokens for every node of the restricted requests."""

    owners: frozenset[int]  # restricted ones
    row: Tensor  # [nodes] int64: the node's row of `packed`; 0 for nodes of other owners
    packed: Tensor  # [M, W] uint8
    vocab_size: int

    def at(self, nodes: Tensor, owners: SequenceOf[int]) -> TokenMask | None:
        """The masks of ``nodes`` [B], which belong to ``owners``; None: no node is restricted."""
        rows = [row for row, owner in enumerate(owners) if owner in self.owners]
        if not rows:
            return None
        chosen = nodes[put(rows, nodes.device)]
        return token_mask(rows, self.packed[self.row[chosen]], self.vocab_size)


def node_masks(
    batch: TargetBatch, constraints: SequenceOf[Constraint | None], num_ids: int, device: torch.device
) -> NodeMasks | None:
    """constraints: of the batch's owners. Reads the drafted ids back to the host if a grammar needs them."""
    restricted = {owner: constraint for owner, constraint in enumerate(constraints) if constraint is not None}
    if not restricted:
        return None
    nodes: dict[int, list[int]] = {owner: [] for owner in restricted}
    for node, owner in enumerate(batch.node_owner):
        if owner in nodes:
            nodes[owner].append(node)
    paths = _paths(batch, [n for owner, c in restricted.items() if c.follows_path for n in nodes[owner]])
    row = np.zeros(len(batch.node_owner), dtype=np.int64)
    packed: list[PackedSet] = []
    for owner, constraint in restricted.items():
        if not constraint.follows_path:
            row[nodes[owner]] = len(packed)
            packed.append(constraint.allowed(()))
            continue
        for node in nodes[owner]:
            row[node] = len(packed)
            packed.append(constraint.allowed(paths[node]))
    return NodeMasks(
        frozenset(restricted),
        put(row, device),
        put(np.stack(packed), device),
        num_ids,
    )


def _paths(batch: TargetBatch, nodes: list[int]) -> dict[int, tuple[int, ...]]:
    """The drafted tokens on the way to every node, itself included."""
    if not nodes:
        return {}
    chosen = batch.path[put(nodes, batch.path.device)].tolist()
    return {
        node: tuple(token for token in path if token >= 0) for node, path in zip(nodes, chosen, strict=True)
    }
