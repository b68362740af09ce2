"""Tokens that may follow a sequence and are known before anything is drawn: a trie of candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class KnownTree:
    """A trie of ``t`` nodes, numbered from 1; node 0 is the root, the last committed token.

    A parent comes before its children, and the children of one node have distinct tokens.
    """

    tokens: tuple[int, ...] = ()  # of nodes 1 to t
    parents: tuple[int, ...] = ()  # of nodes 1 to t
    sources: tuple[str, ...] = ()  # of nodes 1 to t: who proposed the node, the best first
    chances: tuple[float, ...] = ()  # of nodes 1 to t: that the node is kept if its parent is, in [0, 1]

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of every node, the root's first."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes + 1)]
        for node, parent in enumerate(self.parents, start=1):
            children[parent].append(node)
        return tuple(tuple(nodes) for nodes in children)

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The nodes that have children."""
        return tuple(node for node, below in enumerate(self.children) if below)

    @cached_property
    def max_children(self) -> int:
        return max(len(below) for below in self.children)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of every node; the root's is 0."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        return max(self.depths)

    @cached_property
    def ways(self) -> tuple[float, ...]:
        """Of every node, the chance that it is kept; the root's is 1."""
        ways = [1.0]
        for parent, chance in zip(self.parents, self.chances, strict=True):
            ways.append(ways[parent] * chance)
        return tuple(ways)

    @cached_property
    def expected_tokens(self) -> float:
        """Candidates that are kept on average."""
        return sum(self.ways[1:])

    @cached_property
    def first_chance(self) -> float:
        """That a child of the root is kept."""
        return min(1.0, sum(self.ways[node] for node in self.children[0]))

    @cached_property
    def lineage(self) -> NDArray[np.bool_]:
        """[1 + t, 1 + t] bool: node j is node i or an ancestor of it."""
        lineage = np.eye(self.num_nodes + 1, dtype=np.bool_)
        for node, parent in enumerate(self.parents, start=1):
            lineage[node] |= lineage[parent]
        return lineage


NOTHING_KNOWN = KnownTree()
