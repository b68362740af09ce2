"""The shape of a candidate tree: how many nodes a level expands and how many children each gets.

A shape is fixed before anything is drawn, so it cannot depend on the draws; *which* nodes of a level
are expanded is chosen while growing, from everything drawn before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from .drawing import Drawing

_EXPANDED = 2  # nodes of a level that get children


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
    drawing: Drawing = Drawing.HEAD_AND_TAIL
    shares_nodes: bool = True  # equal draws at a node lead to one node; else each has one of its own

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
        return self if depth >= self.depth else replace(self, levels=self.levels[:depth])

    def is_even(self, depth: int) -> bool:
        """Whether a node of the level above ``depth`` has at most one draw, or the same below each."""
        if self.levels[depth].num_tail <= 1:
            return True
        below = zip(self.levels[depth:], self.levels[depth + 1 :], strict=False)
        return all(level.expand == above.num_nodes for above, level in below)


@lru_cache(maxsize=256)
def plan_shape(
    max_nodes: int,
    max_depth: int,
    *,
    greedy: bool,
    drawing: Drawing = Drawing.HEAD_AND_TAIL,
    shares_nodes: bool = True,
) -> TreeShape:
    """A tree of at most ``max_nodes`` candidates and ``max_depth`` levels.

    Few candidates make a chain; more make levels of about the same size, of which the two most likely
    nodes get children. The last child of a node is a tail draw, the others are the draft's top tokens;
    where ``drawing`` has no chosen children, all are draws, and under greedy decoding all are top
    tokens. A `Drawing.CHAIN` has one candidate a level. docs/trees.md has the figures behind it.
    """
    if drawing is Drawing.CHAIN:
        level = Level(1, 1, 0) if greedy else Level(1, 0, 1)
        return TreeShape((level,) * min(max_nodes, max_depth), drawing, shares_nodes)
    # Between a chain and pairs on every level: pairs on fewer levels.
    depth = max_nodes // 2 if max_depth < max_nodes < 2 * max_depth else min(max_depth, max_nodes)
    levels: list[Level] = []
    left = max_nodes
    for remaining in range(depth, 0, -1):
        expand = min(_EXPANDED, levels[-1].num_nodes) if levels else 1
        share = -(-left // remaining) if levels else left // remaining
        children = max(1, min(-(-share // expand), left // expand))
        if expand * children > left:  # one candidate is left for two nodes
            expand = left
        num_tail = children if drawing is not Drawing.HEAD_AND_TAIL else 1
        num_tail = 0 if greedy else num_tail
        levels.append(Level(expand, children - num_tail, num_tail))
        left -= expand * children
    return TreeShape(tuple(levels), Drawing.HEAD if greedy else drawing, shares_nodes)
