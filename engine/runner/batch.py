"""One forward of the target: prompt chunks, single tokens and candidate trees, packed together.

Tokens are laid out item by item for those without a tree, then tree by tree, group by group; a tree
takes ``1 + n + t`` tokens, its slots in order. Tokens that a grammar forced before a root stand among the
items without a tree. Of these, long chunks come first, then single tokens, then short chunks, since
neighbours may be attended together. The rows of the logits are the *nodes* of the step: the last token of
each item that samples without a tree, then all slots of all trees. Behind them come, item by item, the
prompt positions whose logits are wanted only to score the next token of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resispec.models.base import Segment, StepInputs
from resispec.models.device import put

from ..proposers.base import GrownGroup
from ..scheduler import PlannedSequence

_SHORT = 8  # tokens of a chunk that is better attended together with others


@dataclass(frozen=True)
class TargetBatch:
    """The target's inputs, and which request each node belongs to."""

    inputs: StepInputs
    owners: tuple[int, ...]  # [R] items that sample, in the order of `roots`
    roots: tuple[int, ...]  # [R] node of each one's root
    node_owner: tuple[int, ...]  # [nodes] index into `owners`
    group_owners: tuple[int, ...]  # index into `owners` of each group's first tree
    groups: tuple[GrownGroup, ...]

    @cached_property
    def path(self) -> Tensor:
        """Draft tokens on the way to each node, itself included: [nodes, D] int64; -1: none.

        Made when first asked for: few laws look at it.
        """
        num_plain = len(self.owners) - sum(len(group.members) for group in self.groups)
        return _paths(num_plain, self.groups, self.inputs.token_ids.device)


def build_target_batch(
    items: SequenceOf[PlannedSequence],
    groups: SequenceOf[GrownGroup],
    group_items: SequenceOf[SequenceOf[int]],
    device: torch.device,
) -> TargetBatch:
    """group_items: for every group, the item of each of its trees."""
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    segments: list[Segment] = []
    wanted: list[int] = []
    owners: list[int] = []
    scored: dict[int, list[int]] = {}
    in_tree = {item for members in group_items for item in members}
    counts = [item.num_tokens - (index in in_tree) for index, item in enumerate(items)]  # less a tree's root
    together = [index for index, count in enumerate(counts) if count]
    if any(counts[index] > 1 for index in together):
        together.sort(key=lambda index: _place(counts[index]))
    for index in together:
        item, count = items[index], counts[index]
        sequence, start = item.sequence, item.sequence.target_rows
        kv_start = _kv_start(item)
        segments.append(Segment(len(ids), count, kv_start, start + count))
        if wants := sequence.scored_positions(count):
            scored[index] = [len(ids) + position - start for position in wants]
        ids += sequence.token_ids[start : start + count]
        positions += range(start, start + count)
        rows += range(kv_start + start, kv_start + start + count)
        if item.samples and index not in in_tree:
            owners.append(index)
            wanted.append(len(ids) - 1)
    num_plain = len(wanted)
    roots = list(range(num_plain))
    node_owner = list(roots)
    start = len(ids)
    group_owners: list[int] = []
    for group, members in zip(groups, group_items, strict=True):
        group_owners.append(len(owners))
        for tree, index in enumerate(members):
            root = items[index].length - 1
            depths = _depths(group, tree)
            slots = len(depths)
            kv_start = _kv_start(items[index])
            mask = group.visible[tree, :slots, :slots]
            segments.append(Segment(start, slots, kv_start, root + slots, mask))
            positions += [root + depth for depth in depths]
            rows += range(kv_start + root, kv_start + root + slots)
            roots.append(len(node_owner))
            node_owner += [len(owners)] * slots
            owners.append(index)
            start += slots
    trees = [_real_slots(group, group.tokens) for group in groups]
    wanted += [*range(len(ids), start), *(row for _, rows in sorted(scored.items()) for row in rows)]
    inputs = StepInputs(
        token_ids=torch.cat([put(ids, device), *trees]) if trees else put(ids, device),
        positions=put(positions, device),
        rows=put(rows, device),
        segments=tuple(segments),
        logits_index=put(wanted, device),
    )
    return TargetBatch(
        inputs,
        tuple(owners),
        tuple(roots),
        tuple(node_owner),
        tuple(group_owners),
        tuple(groups),
    )


def _place(count: int) -> tuple[int, int]:
    """Where a segment of ``count`` tokens comes among those without a tree."""
    return (1 if count == 1 else 2 if count <= _SHORT else 0, count)


def _kv_start(item: PlannedSequence) -> int:
    assert item.sequence.entry is not None, "a planned sequence has rows"
    return item.sequence.entry.extent.start


def _depths(group: GrownGroup, tree: int) -> list[int]:
    """The depth of every slot; the root's is 0."""
    depths = [0]
    for depth, level in enumerate(group.shape.levels, start=1):
        depths += [depth] * level.num_nodes
    return [*depths, *group.known[tree].depths[1:]]


def _real_slots(group: GrownGroup, values: Tensor) -> Tensor:
    """[G, S, ...] -> the slots that each tree has, tree by tree."""
    sizes = [1 + group.candidates(tree).num_nodes for tree in range(len(group.members))]
    if min(sizes) == values.shape[1]:
        return values.flatten(0, 1)
    return torch.cat([values[tree, :size] for tree, size in enumerate(sizes)])


def _paths(num_plain: int, groups: SequenceOf[GrownGroup], device: torch.device) -> Tensor:
    width = max((group.tokens.shape[1] - 1 for group in groups), default=0)
    parts = [torch.full((num_plain, width), -1, dtype=torch.long, device=device)]
    if not groups:
        return parts[0]
    for group in groups:
        drafted = torch.where(group.visible[:, :, 1:], group.tokens[:, None, 1:], -1)
        if group.shape.num_nodes and any(tree.num_nodes for tree in group.known):
            drafted = _by_depth(drafted, group.visible)
        drafted = _real_slots(group, drafted)
        parts.append(torch.nn.functional.pad(drafted, (0, width - drafted.shape[1]), value=-1))
    return torch.cat(parts)


def _by_depth(drafted: Tensor, visible: Tensor) -> Tensor:
    """Paths ([G, S, S - 1], in the order of slots) in the order of depth: drafted slots come before known
    ones, which may be their parents. Slots off the path (-1) go last.
    """
    depth = visible.sum(dim=2)[:, None, 1:].expand_as(drafted)
    order = depth.masked_fill(drafted < 0, visible.shape[2] + 1).argsort(dim=2, stable=True)
    return drafted.gather(2, order)
