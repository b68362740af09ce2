"""The shape of a candidate tree: how many nodes a level expands and how many children each gets.

A shape is fixed before anything is drawn, so it cannot depend on the draws; *which* nodes of a level
are expanded is chosen while growing, from everything drawn before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class Level:
    """``expand`` nodes of the level above (the root, for the first) get ``num_children`` children."""

    expand: int
    num_head: int
    num_tail: int

    @property
    def num_children(self) -> int:
        return self.num_head + self.num_tail

    @property
    def num_nodes(self) -> int:
        return self.expand * self.num_children


@dataclass(frozen=True)
class TreeShape:
    """Slots: 0 is the root, then level by level, the children of one node side by side."""

    levels: tuple[Level, ...]

    @cached_property
    def num_nodes(self) -> int:
        """Candidates, the root not counted."""
        return sum(level.num_nodes for level in self.levels)

    @cached_property
    def num_expanded(self) -> int:
        return sum(level.expand for level in self.levels)

    @cached_property
    def first_slots(self) -> tuple[int, ...]:
        """The first slot of every level."""
        first, slots = 1, []
        for level in self.levels:
            slots.append(first)
            first += level.num_nodes
        return tuple(slots)

    @cached_property
    def child_index(self) -> tuple[int, ...]:
        """Of every slot, which child of its parent it is; -1 for the root."""
        indices = [-1]
        for level in self.levels:
            indices += list(range(level.num_children)) * level.expand
        return tuple(indices)

    @property
    def depth(self) -> int:
        return len(self.levels)

    def cut(self, depth: int) -> TreeShape:
        """The first ``depth`` levels."""
        return self if depth >= self.depth else TreeShape(self.levels[:depth])


@lru_cache(maxsize=256)
def plan_shape(max_nodes: int, max_depth: int, *, greedy: bool) -> TreeShape:
    """A tree of at most ``max_nodes`` candidates and ``max_depth`` levels.

    Half of what is left goes to each level until the budget is spent, at least one child each: wide
    where most walks pass, narrow where few arrive. The last child of a node is a tail draw, the
    others are the draft's top tokens (the best single mix measured, see docs/trees.md); under greedy
    decoding all are top tokens.
    """
    levels: list[Level] = []
    left = max_nodes
    while left > 0 and len(levels) < max_depth:
        last = len(levels) == max_depth - 1
        budget = left if last else max(1, (left + 1) // 2)
        previous = levels[-1].num_nodes if levels else 1
        expand = min(previous, 1 if not levels else 2, budget)
        children = budget // expand
        num_tail = 0 if greedy else 1
        levels.append(Level(expand, children - num_tail, num_tail))
        left -= expand * children
    return TreeShape(tuple(levels))
