"""The shape of a candidate tree: what is known beforehand, and how many children a draft adds where.

A shape is fixed before anything is drawn, so it cannot depend on the draws; *which* nodes of a level
are expanded is chosen while growing, from everything drawn before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from .drawing import Drawing
from .known_tree import NOTHING_KNOWN, KnownTree

DRAFT = "draft"  # what a drafted candidate's source is called

_EXPANDED = 2  # nodes of a level that get children
_ADAPTIVE = 3  # children from which on one draw is not always enough; solving for several takes its time


@dataclass(frozen=True)
class Level:
    """``expand`` nodes of the level above (the root, for the first) get ``num_children`` children each.

    If ``shared`` they get so many together: the likeliest of all, none of which is drawn.
    """

    expand: int
    num_head: int
    num_tail: int
    adaptive: bool = False  # the draft's law chooses more of the children, and so fewer are drawn
    shared: bool = False

    @property
    def num_children(self) -> int:
        """The most of one node."""
        return self.num_head + self.num_tail

    @property
    def num_nodes(self) -> int:
        return self.num_children if self.shared else self.expand * self.num_children


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


NOTHING_DRAFTED = TreeShape(())


@dataclass(frozen=True)
class CandidateTree:
    """The candidates behind one request's last token: ``n`` drafted slots, then ``t`` known nodes.

    Slots: 0 is the root, 1 to ``n`` are those of ``shape``, known node ``i`` has slot ``n + i``. A node
    that the draft expands gets the known nodes below it as its first children, then drafted ones, none
    of them with a token that is known there; other known nodes have known children only.
    """

    shape: TreeShape = NOTHING_DRAFTED
    known: KnownTree = NOTHING_KNOWN

    @cached_property
    def num_nodes(self) -> int:
        """Candidates, the root not counted."""
        return self.shape.num_nodes + self.known.num_nodes

    @cached_property
    def depth(self) -> int:
        """Most candidates that one path can hold."""
        return max(self.shape.depth, self.known.depth)

    def row_size(self, depth: int) -> int:
        """Child slots of a node that the draft expands in level ``depth``, known children included."""
        return self.known.max_children + self.shape.levels[depth].num_children

    @cached_property
    def num_tests(self) -> int:
        """Uniforms that a verifier may use up: one a child slot of every node that may have children."""
        drafted = sum(level.expand * self.row_size(depth) for depth, level in enumerate(self.shape.levels))
        return drafted + self.known.num_nodes

    def is_even(self, depth: int) -> bool:
        """As of `TreeShape`; known nodes may take the place of draws among those expanded."""
        return self.shape.is_even(depth) and (
            not self.known.num_nodes or self.shape.levels[depth].num_tail <= 1
        )

    def known_node(self, slot: int) -> int:
        """The known node in a slot; 0: the root's, or none."""
        return max(0, slot - self.shape.num_nodes)

    def source_of(self, slot: int) -> str:
        """Who proposed the candidate in a slot."""
        node = self.known_node(slot)
        return self.known.sources[node - 1] if node else DRAFT

    @cached_property
    def proposed_by_source(self) -> Counter[str]:
        """How many candidates each source proposed."""
        counts = Counter(self.known.sources)
        if self.shape.num_nodes:
            counts[DRAFT] = self.shape.num_nodes
        return counts

    def num_run_by_draft(self, path: SequenceOf[int]) -> int:
        """How many slots at the beginning of a path the draft has run for certain.

        It runs what it expands, which is sure of a node with a drafted child.
        """
        below = [slot for slot in path[1:] if not self.known_node(slot)]
        last = below[-1] if below else None
        return path.index(last) if last is not None else 0


def _level(expand: int, children: int, drawing: Drawing) -> Level:
    if drawing is not Drawing.HEAD_AND_TAIL:
        return Level(expand, 0, children)
    if children < _ADAPTIVE:
        return Level(expand, children - 1, 1)
    return Level(expand, 0, children, adaptive=True)


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
    nodes get children. Of two children one is the draft's top token and one a tail draw, of more the draft's
    law decides how many are drawn; where ``drawing`` has no chosen children all are. Where it has no draws,
    and under greedy decoding, all are chosen: levels get smaller on the way down, and from the second on
    both nodes share one. A `Drawing.CHAIN` has one candidate a level. docs/trees.md has the figures.
    """
    if drawing is Drawing.CHAIN:
        level = Level(1, 1, 0) if greedy else Level(1, 0, 1)
        return TreeShape((level,) * min(max_nodes, max_depth), drawing, shares_nodes)
    # Between a chain and pairs on every level: pairs on fewer levels.
    depth = max_nodes // 2 if max_depth < max_nodes < 2 * max_depth else min(max_depth, max_nodes)
    if greedy or drawing is Drawing.HEAD:
        return TreeShape(_chosen_levels(max_nodes, depth), Drawing.HEAD, shares_nodes)
    levels: list[Level] = []
    left = max_nodes
    for remaining in range(depth, 0, -1):
        expand = min(_EXPANDED, levels[-1].num_nodes) if levels else 1
        share = -(-left // remaining) if levels else left // remaining
        children = max(1, min(-(-share // expand), left // expand))
        if expand * children > left:  # one candidate is left for two nodes
            expand = left
        levels.append(_level(expand, children, drawing))
        left -= expand * children
    return TreeShape(tuple(levels), drawing, shares_nodes)


def _chosen_levels(num_nodes: int, depth: int) -> tuple[Level, ...]:
    """Of chosen children only. Sizes fall as ``depth, .., 2, 1`` do, and are rounded to use up all nodes."""
    levels: list[Level] = []
    left = num_nodes
    for remaining in range(depth, 0, -1):
        size = 2 * left // (remaining + 1)
        expand = min(_EXPANDED, levels[-1].num_nodes) if levels else 1
        levels.append(Level(expand, size, 0, shared=expand > 1))
        left -= size
    return tuple(levels)
