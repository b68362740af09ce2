"""Trees grown by a draft model or a draft head, level by level, all requests in one forward a level."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import torch
from torch import Tensor

from resispec.models.base import Segment, StepInputs, StepModel

from ..request import SamplingParams
from ..tree import Level, TreeShape
from .base import DraftItem, GrownGroup, GrownLevel
from .children import Truncation, propose

_CATCH_UP_TOKENS = 1024  # of one forward: its masks take memory in proportion to tokens times context
TAIL_TOKENS = 256  # tokens kept of a tail's law; the rule's cost grows with it, its gain hardly


class DraftProposer:
    """Proposes from a `StepModel`: the draft's top tokens, and draws from its law without them."""

    def __init__(
        self, draft: StepModel, target_hidden: Tensor | None, num_ids: int, device: torch.device
    ) -> None:
        """target_hidden: [rows, H], the target's states by KV row, for a draft that needs them.

        num_ids: token ids from here on do not exist in the tokenizer and are never proposed.
        """
        self._draft = draft
        self._target_hidden = target_hidden
        self._num_ids = num_ids
        self._device = device

    def grow(self, items: SequenceOf[DraftItem]) -> tuple[GrownGroup, ...]:
        if not items:
            return ()
        shapes = dict.fromkeys(item.shape for item in items if item.shape is not None)
        trees = [_Growing(shape, items, self._device) for shape in shapes]
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
        rows_tensor = torch.tensor(rows, device=self._device)
        positions_tensor = torch.tensor(positions, device=self._device)
        hidden = None
        if self._draft.needs_hidden:
            assert self._target_hidden is not None
            # Position i is drafted from the target's state at i - 1; nothing comes before position 0.
            hidden = self._target_hidden[(rows_tensor - 1).clamp_min(0)]
            hidden = hidden.masked_fill((positions_tensor == 0)[:, None], 0.0)
        wanted = torch.tensor(
            [index for roots in last.values() for index in roots], dtype=torch.long, device=self._device
        )
        outputs = self._draft.forward(
            StepInputs(
                token_ids=torch.tensor(ids, device=self._device),
                positions=positions_tensor,
                rows=rows_tensor,
                segments=tuple(segments),
                logits_index=wanted,
                hidden=hidden,
            )
        )
        return outputs.logits, outputs.hidden[wanted] if self._draft.needs_hidden else None

    def _run_level(self, trees: list[_Growing]) -> None:
        """Run the draft over the nodes about to be expanded, of all trees together."""
        if not trees:
            return
        parts = [tree.frontier_inputs() for tree in trees]
        segments: list[Segment] = []
        start = 0
        for tree, part in zip(trees, parts, strict=True):
            width = tree.frontier.shape[1]
            for item, mask in zip(tree.items, part.masks, strict=True):
                segments.append(Segment(start, width, item.kv_start, mask.shape[1], mask))
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


class _FrontierInputs:
    """Inputs of a group's expanded nodes, flat, request by request."""

    def __init__(self, token_ids: Tensor, positions: Tensor, rows: Tensor, masks: list[Tensor]) -> None:
        self.token_ids = token_ids  # [G * w] int64
        self.positions = positions  # [G * w] int64
        self.rows = rows  # [G * w] int64
        self.masks = masks  # G of [w, kv length] bool


class _Growing:
    """The half-grown trees of one shape."""

    def __init__(self, shape: TreeShape, items: SequenceOf[DraftItem], device: torch.device) -> None:
        self.shape = shape
        self.members = tuple(i for i, item in enumerate(items) if item.shape == shape)
        self.items = [items[i] for i in self.members]
        self.size = size = len(self.members)
        slots = 1 + shape.num_nodes
        self.tokens = torch.zeros(size, slots, dtype=torch.long, device=device)
        self.tokens[:, 0] = torch.tensor([item.catch_up[-1] for item in self.items], device=device)
        self.visible = torch.eye(slots, dtype=torch.bool, device=device).repeat(size, 1, 1)
        self.scores = torch.zeros(size, slots, dtype=torch.float64, device=device)
        self.frontier = torch.zeros(size, 1, dtype=torch.long, device=device)
        self.temperature = torch.tensor(
            [item.sampling.temperature for item in self.items], dtype=torch.float64, device=device
        )
        self.uniforms = torch.tensor(
            [item.uniforms for item in self.items], dtype=torch.float64, device=device
        )
        self.roots = torch.tensor([item.root for item in self.items], device=device)
        self.kv_starts = torch.tensor([item.kv_start for item in self.items], device=device)
        self.levels: list[GrownLevel] = []
        self.logits: Tensor | None = None  # [G * w, Vd] of the frontier
        self.states: Tensor | None = None  # [G, 1 + n, H] of a head, where it has run

    def take(self, logits: Tensor, states: Tensor | None) -> None:
        """The draft's outputs at the frontier: [G * w, Vd] and, for a head, [G * w, H]."""
        self.logits = logits
        if states is not None:
            if self.states is None:
                slots = 1 + self.shape.num_nodes
                self.states = states.new_zeros(self.size, slots, states.shape[-1])
            index = self.frontier[..., None].expand(-1, -1, states.shape[-1])
            self.states.scatter_(1, index, states.view(self.size, -1, states.shape[-1]))

    def add_level(self, depth: int, num_ids: int, vocab_ids: Tensor | None) -> None:
        """Draw the children of the frontier and choose the next frontier among them."""
        level, first = self.shape.levels[depth], self.shape.first_slots[depth]
        assert self.logits is not None
        width, per_node = level.expand, level.num_children
        uniforms = self.uniforms[:, first - 1 : first - 1 + level.num_nodes].reshape(-1, per_node)
        repeated = self.temperature.repeat_interleave(width)
        proposal, log_probs = propose(
            self.logits if vocab_ids is not None else self.logits[:, :num_ids],
            temperature=repeated,
            num_head=torch.full_like(repeated, level.num_head, dtype=torch.long),
            num_tail=torch.full_like(repeated, level.num_tail, dtype=torch.long),
            num_slots=per_node,
            num_tail_tokens=TAIL_TOKENS if level.num_tail else 0,
            uniforms=uniforms,
            vocab_ids=vocab_ids,
            truncation=_truncation([item.sampling for item in self.items], width, self.tokens.device),
            max_tail=level.num_tail,
            drawing=self.shape.drawing,
        )
        slots = torch.arange(first, first + level.num_nodes, device=self.tokens.device)
        tokens = proposal.tokens.view(self.size, level.num_nodes)
        # A slot that stayed empty (no tail left to draw from) is verified as some token, never kept.
        self.tokens[:, slots] = tokens.clamp_min(0)
        parents = self.frontier.repeat_interleave(per_node, dim=1)  # [G, w * K]
        own = self.visible[:, slots]
        inherited = self.visible.gather(1, parents[..., None].expand(-1, -1, own.shape[-1]))
        self.visible[:, slots] = own | inherited
        scores = self.scores.gather(1, parents) + log_probs.view(self.size, -1)
        equal = proposal.tokens[:, :, None] == proposal.tokens[:, None, :]
        earliest = equal.to(torch.uint8).argmax(dim=2)  # [G * w, K]: the first slot with the same token
        repeat = (earliest < torch.arange(per_node, device=earliest.device)).view(self.size, -1)
        scores = scores.masked_fill(repeat | (tokens < 0), float("-inf"))
        self.scores[:, slots] = scores
        children = slots.view(1, width, per_node).expand(self.size, -1, -1)
        if self.shape.shares_nodes:
            children = children.gather(2, earliest.view(self.size, width, per_node))
        self.levels.append(GrownLevel(self.frontier, children, proposal))
        if depth + 1 < self.shape.depth:
            self.frontier = first + scores.topk(self.shape.levels[depth + 1].expand, dim=1).indices

    def frontier_inputs(self) -> _FrontierInputs:
        depth = len(self.levels)
        width = self.frontier.shape[1]
        slots = self.shape.first_slots[depth] if depth < self.shape.depth else 1 + self.shape.num_nodes
        visible = self.visible.gather(1, self.frontier[..., None].expand(-1, -1, self.visible.shape[-1]))[
            ..., :slots
        ]
        masks = [
            torch.cat([visible.new_ones(width, item.root), visible[i]], dim=1)
            for i, item in enumerate(self.items)
        ]
        return _FrontierInputs(
            token_ids=self.tokens.gather(1, self.frontier).flatten(),
            positions=(self.roots + depth).repeat_interleave(width),
            rows=(self.kv_starts[:, None] + self.roots[:, None] + self.frontier).flatten(),
            masks=masks,
        )

    def parent_hidden(self) -> Tensor:
        """A head's own states of the frontier's parents: [G * w, H]."""
        assert self.states is not None
        parents = self._parents_of_frontier()
        index = parents[..., None].expand(-1, -1, self.states.shape[-1])
        return self.states.gather(1, index).flatten(0, 1)

    def _parents_of_frontier(self) -> Tensor:
        level: Level = self.shape.levels[len(self.levels) - 1]
        first = self.shape.first_slots[len(self.levels) - 1]
        position = torch.div(self.frontier - first, level.num_children, rounding_mode="floor")
        return self.levels[-1].parents.gather(1, position)

    def finish(self) -> GrownGroup:
        return GrownGroup(self.shape, self.members, self.tokens, self.visible, tuple(self.levels))


def _truncation(sampling: SequenceOf[SamplingParams], width: int, device: torch.device) -> Truncation | None:
    """The requests' own truncation, ``width`` rows each: what the target excludes is drafted in vain."""
    if all(params.top_k == 0 and params.top_p == 1 and params.min_p == 0 for params in sampling):
        return None
    repeated = [params for params in sampling for _ in range(width)]
    return Truncation(
        top_k=torch.tensor([params.top_k for params in repeated], device=device),
        top_p=torch.tensor([params.top_p for params in repeated], dtype=torch.float64, device=device),
        min_p=torch.tensor([params.min_p for params in repeated], dtype=torch.float64, device=device),
    )
