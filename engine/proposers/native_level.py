"""A level of half-grown trees by the compiled kernel: what `GrowingTrees` does with torch's operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..drawing import Drawing
from ..native import GrowKernel, LevelArguments
from ..tree import TreeShape
from ..verifiers.base import Proposal
from .children import Truncation
from .known import KnownNodes


@dataclass(frozen=True, slots=True)
class Ranking:
    """How many tokens of each node are looked at."""

    num_law: int  # of a tail's law; 0: nothing is drawn
    num_ranked: int  # those that shares are of
    num_spare: int  # further ones, in the place of known ones


@dataclass(frozen=True, slots=True)
class Frontier:
    """Nodes about to be expanded, ``w`` of each tree, and the draft's inputs for them."""

    slots: Tensor  # [G, w] int64
    inputs: Tensor  # [3, G * w] int64: tokens, positions, KV rows
    visible: Tensor  # [G, w, S] bool


@dataclass(frozen=True, slots=True)
class NativeLevel:
    """Of ``F`` expanded nodes, ``K`` children each, the known ones among them."""

    proposal: Proposal
    children: Tensor  # [F, K] int64: slots, -1: none
    frontier: Frontier | None  # the next; None after the last level


class TreeTensors(Protocol):
    """Trees as `GrowingTrees` holds them, contiguous, on the CPU."""

    shape: TreeShape
    size: int
    known: KnownNodes | None
    tokens: Tensor
    parents: Tensor
    visible: Tensor
    scores: Tensor
    frontier: Tensor
    temperature: Tensor
    uniforms: Tensor
    roots: Tensor
    kv_starts: Tensor


def grow_level(
    kernel: GrowKernel,
    trees: TreeTensors,
    depth: int,
    logits: Tensor,
    vocab_ids: Tensor | None,
    truncation: Truncation | None,
    ranking: Ranking,
) -> NativeLevel:
    """Add the level to ``trees``, whose tokens, parents, visible nodes and scores are written.

    logits: [F, Vd] float32 of the frontier; truncation: a row a tree.
    """
    shape = trees.shape
    level, last = shape.levels[depth], depth + 1 == shape.depth
    known, slots = trees.known, trees.tokens.shape[1]
    most, known_width = level.num_children, 0 if known is None else known.children.shape[2]
    size, width, rows = trees.size, level.expand, trees.size * level.expand
    next_width = 0 if last else shape.levels[depth + 1].expand
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    empty = trees.tokens.new_empty
    tokens, index, children = empty(3, rows, known_width + most).unbind(0)
    num_head, num_tail = empty(2, rows).unbind(0)
    tail_ids = empty(rows, ranking.num_law)
    tail_probs = trees.scores.new_empty(rows, ranking.num_law)
    frontier = empty(size, next_width)
    inputs = empty(3, size * next_width)
    masks = trees.visible.new_empty(size, next_width, slots)
    first = shape.first_slots[depth]
    limits: tuple[int | None, ...] = (None, None, None)
    if truncation is not None:
        limits = tuple(_address(limit) for limit in (truncation.top_k, truncation.top_p, truncation.min_p))
    kernel.grow(
        LevelArguments(
            logits.data_ptr(),
            _address(vocab_ids),
            trees.temperature.data_ptr(),
            trees.uniforms.data_ptr() + (first - 1) * trees.uniforms.element_size(),
            *limits,
            trees.frontier.data_ptr(),
            None if known is None else known.children.data_ptr(),
            None if known is None else known.log_chances.data_ptr(),
            trees.roots.data_ptr(),
            trees.kv_starts.data_ptr(),
            trees.tokens.data_ptr(),
            trees.parents.data_ptr(),
            trees.visible.data_ptr(),
            trees.scores.data_ptr(),
            tokens.data_ptr(),
            num_head.data_ptr(),
            num_tail.data_ptr(),
            tail_ids.data_ptr(),
            tail_probs.data_ptr(),
            index.data_ptr(),
            children.data_ptr(),
            frontier.data_ptr(),
            inputs.data_ptr(),
            masks.data_ptr(),
            size,
            width,
            slots,
            logits.shape[1],
            logits.stride(0),
            trees.uniforms.shape[1],
            level.num_head,
            level.num_tail,
            known_width,
            first,
            level.num_nodes,
            ranking.num_law,
            ranking.num_ranked,
            ranking.num_spare,
            next_width,
            depth,
            level.adaptive,
            level.shared,
            shape.drawing is Drawing.WITHOUT_REPLACEMENT,
            shape.shares_nodes,
        )
    )
    drawing = shape.drawing
    if known is not None and drawing is Drawing.INDEPENDENT:
        drawing = Drawing.HEAD_AND_TAIL
    proposal = Proposal(
        tokens, num_head, num_tail, tail_ids, tail_probs, index, level.num_tail, frozenset({drawing})
    )
    return NativeLevel(proposal, children, None if last else Frontier(frontier, inputs, masks))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
