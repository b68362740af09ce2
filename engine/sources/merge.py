"""All sources' paths as one trie: the likeliest nodes, as many as there is room for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..known_tree import NOTHING_KNOWN, KnownTree
from .base import Path


@dataclass(slots=True, eq=False)
class _Node:
    token: int
    source: str
    order: int  # in which nodes came up: a parent before its children
    chance: float  # of the whole way from the root
    children: dict[int, _Node] = field(default_factory=dict)


def merge(
    said: Iterable[tuple[str, Iterable[Path]]], max_nodes: int, max_depth: int, least: float
) -> KnownTree:
    """The ``max_nodes`` likeliest nodes, none likelier to fail than ``1 - least``.

    said: each source's paths; a node that several say is the first one's and has the best of their chances.
    """
    root = _Node(-1, "", 0, 1.0)
    nodes: list[_Node] = []
    for source, paths in said:
        for path in paths:
            node, chance = root, 1.0
            for token, step in zip(path.tokens[:max_depth], path.chances, strict=False):
                chance *= step
                if chance < least:
                    break
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _Node(token, source, len(nodes), chance)
                    nodes.append(child)
                child.chance = max(child.chance, chance)
                node = child
    if not nodes:
        return NOTHING_KNOWN
    # No child is likelier than its parent, nor older, so the best nodes make a tree.
    nodes.sort(key=lambda node: (-node.chance, node.order))
    return _number(root, {id(node) for node in nodes[:max_nodes]})


def _number(root: _Node, kept: set[int]) -> KnownTree:
    """Depth first, the likeliest child first: a path that is kept to its end needs no moving of rows."""
    tokens: list[int] = []
    parents: list[int] = []
    sources: list[str] = []
    chances: list[float] = []
    stack = [(child, 0, 1.0) for child in reversed(_best_first(root, kept))]
    while stack:
        node, parent, arriving = stack.pop()
        tokens.append(node.token)
        parents.append(parent)
        sources.append(node.source)
        chances.append(node.chance / arriving)
        number = len(tokens)
        stack += [(child, number, node.chance) for child in reversed(_best_first(node, kept))]
    return KnownTree(tuple(tokens), tuple(parents), tuple(sources), tuple(chances))


def _best_first(node: _Node, kept: set[int]) -> list[_Node]:
    children = [child for child in node.children.values() if id(child) in kept]
    return sorted(children, key=lambda child: (-child.chance, child.order))
