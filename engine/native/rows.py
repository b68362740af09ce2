"""Rows of children as the kernels' walks read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from ..verifiers.base import Proposal


@dataclass(frozen=True, slots=True)
class TreeRows:
    """``w`` expanded nodes of each of ``G`` trees, with ``K`` slots each, nodes numbered from the root."""

    bases: Tensor  # [G] int64: the node of each tree's root
    parents: Tensor  # [G, w] int64: the expanded nodes
    children: Tensor  # [G, w, K] int64: the node a kept child leads to, or -1
    proposal: Proposal  # of the G * w nodes, tree by tree
    firsts: Tensor | None = None  # [G * w] int64: where the uniforms of each begin; None: none are looked at

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the kernel's fields, but for ``firsts``."""
        own = self.proposal
        law = (own.tail_ids, own.tail_index, own.tail_probs)
        return self.bases, self.parents, self.children, own.tokens, own.num_head, own.num_tail, *law
