"""Trees grown by a draft model or a draft head, level by level, all requests in one forward a level."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import torch
from torch import Tensor

from resispec.models.base import Segment, StepInputs, StepModel
from resispec.models.device import put
from resispec.models.states import RowStates

from ..tree import TreeShape
from .base import DraftItem, GrownGroup
from .growing import GrowingTrees

_CATCH_UP_TOKENS = 1024  # of one forward: its masks take memory in proportion to tokens times context


class DraftProposer:
    """Proposes from a `StepModel`: the draft's top tokens, and draws from its law without them."""

    def __init__(
        self, draft: StepModel, target_states: RowStates | None, num_ids: int, device: torch.device
    ) -> None:
        """target_states: of the target's KV rows, for a draft that needs them.

        num_ids: token ids from here on do not exist in the tokenizer and are never proposed.
        """
        self._draft = draft
        self._target_states = target_states
        self._num_ids = num_ids
        self._device = device

    def grow(self, items: SequenceOf[DraftItem]) -> tuple[GrownGroup, ...]:
        if not items:
            return ()
        shapes = dict.fromkeys(item.shape for item in items if item.shape is not None)
        trees = [GrowingTrees(shape, items, self._device) for shape in shapes]
        logits, hidden = self._catch_up(self._shorten(items))
        offset = 0
        for tree in trees:
            tree.take(
                logits[offset : offset + tree.size],
                None if hidden is None else hidden[offset : offset + tree.size],
            )
            offset += tree.size
        for depth in range(max((shape.depth for shape in shapes), default=0)):
            active = [tree for tree in trees if tree.shape.depth > depth]
            for tree in active:
                tree.add_level(depth, self._num_ids, self._draft.vocab_ids)
            self._run_level([tree for tree in active if tree.shape.depth > depth + 1])
        return tuple(tree.finish() for tree in trees)

    def _shorten(self, items: SequenceOf[DraftItem]) -> SequenceOf[DraftItem]:
        """Run the beginnings of long catch-ups in pieces: a cached prefix may lack the draft's rows."""
        if sum(len(item.catch_up) for item in items) <= _CATCH_UP_TOKENS:
            return items
        share = max(1, _CATCH_UP_TOKENS // len(items))
        short = []
        for item in items:
            while (surplus := len(item.catch_up) - share) > 0:
                size = min(surplus, _CATCH_UP_TOKENS)
                self._catch_up([replace(item, catch_up=item.catch_up[:size], shape=None)])
                item = replace(item, catch_up=item.catch_up[size:], start=item.start + size)
            short.append(item)
        return short

    def _catch_up(self, items: SequenceOf[DraftItem]) -> tuple[Tensor, Tensor | None]:
        """Run every item's missing tokens; logits and states at the roots, group by group."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        segments: list[Segment] = []
        last: dict[TreeShape, list[int]] = {}
        for item in items:
            length = len(item.catch_up)
            segments.append(Segment(len(ids), length, item.kv_start, item.start + length))
            ids += item.catch_up
            positions += range(item.start, item.start + length)
            rows += range(item.kv_start + item.start, item.kv_start + item.start + length)
            if item.shape is not None:
                last.setdefault(item.shape, []).append(len(ids) - 1)
        rows_tensor = put(rows, self._device)
        positions_tensor = put(positions, self._device)
        hidden = None
        if self._draft.needs_hidden:
            assert self._target_states is not None
            hidden = self._target_states.before(rows_tensor, positions_tensor)
        wanted = put([index for roots in last.values() for index in roots], self._device)
        outputs = self._draft.forward(
            StepInputs(
                token_ids=put(ids, self._device),
                positions=positions_tensor,
                rows=rows_tensor,
                segments=tuple(segments),
                logits_index=wanted,
                hidden=hidden,
            )
        )
        return outputs.logits, outputs.hidden[wanted] if self._draft.needs_hidden else None

    def _run_level(self, trees: list[GrowingTrees]) -> None:
        """Run the draft over the nodes about to be expanded, of all trees together."""
        if not trees:
            return
        parts = [tree.frontier_inputs() for tree in trees]
        segments: list[Segment] = []
        start = 0
        for tree, part in zip(trees, parts, strict=True):
            width = tree.frontier.shape[1]
            for item, mask in zip(tree.items, part.masks, strict=True):
                segments.append(Segment(start, width, item.kv_start, item.root + mask.shape[1], mask))
                start += width
        total = torch.arange(start, device=self._device)
        outputs = self._draft.forward(
            StepInputs(
                token_ids=torch.cat([part.token_ids for part in parts]),
                positions=torch.cat([part.positions for part in parts]),
                rows=torch.cat([part.rows for part in parts]),
                segments=tuple(segments),
                logits_index=total,
                hidden=torch.cat([tree.parent_hidden() for tree in trees])
                if self._draft.needs_hidden
                else None,
            )
        )
        offset = 0
        for tree in trees:
            end = offset + tree.frontier.numel()
            tree.take(
                outputs.logits[offset:end], outputs.hidden[offset:end] if self._draft.needs_hidden else None
            )
            offset = end
