"""Known nodes as tensors, and as children of nodes that a draft expands."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from resispec.models.device import put

from ..drawing import Drawing
from ..known_tree import KnownTree
from ..tree import NOTHING_DRAFTED
from ..verifiers.base import Proposal
from .base import GrownGroup


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The known nodes of ``G`` trees with ``n`` drafted slots each, padded to the largest: ``S`` slots.

    ``C`` is the most known children of any node.
    """

    tokens: Tensor  # [G, S] int64; 0 in the root's, drafted and unused slots
    parents: Tensor  # [G, S] int64: slots; 0 where not of a known node
    visible: Tensor  # [G, S, S] bool: slot j is slot i or an ancestor of it, as far as known nodes go
    log_chances: Tensor  # [G, S] float64, 0 where not of a known node
    children: Tensor  # [G, S, C] int64: slots, -1 behind the last

    def children_of(self, slots: Tensor) -> Tensor:
        """Slots of the known children of nodes: [G, w] -> [G, w, C]; -1: none."""
        return self.children.gather(1, slots[..., None].expand(-1, -1, self.children.shape[2]))


def known_nodes(trees: SequenceOf[KnownTree], num_drafted: int, device: torch.device) -> KnownNodes:
    size = len(trees)
    slots = 1 + num_drafted + max(tree.num_nodes for tree in trees)
    tokens = np.zeros((size, slots), dtype=np.int64)
    parents = np.zeros((size, slots), dtype=np.int64)
    chances = np.ones((size, slots))
    visible = np.zeros((size, slots, slots), dtype=np.bool_)
    visible[:] = np.eye(slots, dtype=np.bool_)
    children = np.full((size, slots, max(tree.max_children for tree in trees)), -1, dtype=np.int64)
    for row, tree in enumerate(trees):
        own = np.array([0, *range(num_drafted + 1, num_drafted + 1 + tree.num_nodes)])
        tokens[row, own[1:]] = tree.tokens
        parents[row, own[1:]] = own[list(tree.parents)]
        chances[row, own[1:]] = tree.chances
        visible[row, own[:, None], own] = tree.lineage
        for node in tree.inner:
            below = own[list(tree.children[node])]
            children[row, own[node], : len(below)] = below
    visible[:, num_drafted + 1 :, 0] |= True  # of unused slots too: they see what is real, and are not run
    with np.errstate(divide="ignore"):
        log_chances = np.log(chances)
    parts = (tokens, parents, visible, log_chances, children)
    return KnownNodes(*(put(part, device) for part in parts))


@dataclass(frozen=True, slots=True)
class KnownOnly:
    """A request that nothing is drafted for."""

    index: int  # among the items of the step
    root: int  # its last committed token
    tree: KnownTree


def grow_known(items: SequenceOf[KnownOnly], device: torch.device) -> GrownGroup:
    """The trees of requests that nothing is drafted for; its members are the items' indices."""
    trees = tuple(item.tree for item in items)
    nodes = known_nodes(trees, 0, device)
    tokens = nodes.tokens
    tokens[:, 0] = put([item.root for item in items], device)
    members = tuple(item.index for item in items)
    return GrownGroup(NOTHING_DRAFTED, members, tokens, nodes.visible, (), trees)


def put_first(known: Tensor, proposal: Proposal) -> Proposal:
    """The proposal with known tokens ([F, C] int64, -1 behind the last) as the first of its head.

    None of them may be among the proposal's own.
    """
    count = (known >= 0).sum(dim=1)
    own = proposal.tokens.shape[1]
    slot = torch.arange(known.shape[1] + own, device=known.device)
    place = (slot - count[:, None]).clamp(min=0, max=own - 1)
    is_known = slot < count[:, None]
    is_own = ~is_known & (slot < count[:, None] + own)
    tokens = torch.where(is_own, proposal.tokens.gather(1, place), -1)
    index = torch.where(is_own, proposal.tail_index.gather(1, place), 0)
    (drawing,) = proposal.drawings
    drawing = Drawing.HEAD_AND_TAIL if drawing is Drawing.INDEPENDENT else drawing
    return replace(
        proposal,
        drawings=frozenset({drawing}),
        tokens=torch.where(is_known, pad(known, (0, own)), tokens),
        num_head=proposal.num_head + count,
        tail_index=index,
    )


def put_slots_first(known: Tensor, drafted: Tensor) -> Tensor:
    """Of `put_first`, where each child's node is: [.., C] known slots and [.., K] drafted ones, joined."""
    count = (known >= 0).sum(dim=-1, keepdim=True)
    own = drafted.shape[-1]
    slot = torch.arange(known.shape[-1] + own, device=known.device)
    place = (slot - count).clamp(min=0, max=own - 1)
    is_own = slot < count + own
    joined = torch.where(is_own, drafted.gather(-1, place), -1)
    return torch.where(slot < count, pad(known, (0, own)), joined)
