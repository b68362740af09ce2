"""The trees worth considering for one request: by nodes, each step up worth less than the one before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ..drawing import Drawing
from ..tree import TreeShape, plan_shape
from .acceptance import LevelView, expected_tokens, level_views
from .base import TreeBudget, View

_GRAIN = 32  # rates are rounded to this fraction of 1, so that ladders can be kept
_SIZES = (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a request's shapes depend on, its budget aside."""

    greedy: bool
    drawing: Drawing
    shares_nodes: bool


@dataclass(frozen=True, slots=True)
class Rung:
    """One tree."""

    budget: TreeBudget
    nodes: int
    expanded: int  # nodes that have children, the root included
    depth: int
    tokens: float  # expected, beyond the one that every step gives


@dataclass(frozen=True, eq=False)
class Ladder:
    """Trees for one request, each a step up from the one before, from no tree at all. Equal: the same."""

    rungs: tuple[Rung, ...]  # with rising nodes and tokens

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """[4, R]: tokens for a node, nodes, nodes expanded and tokens of each step."""
        sizes = np.array([(rung.nodes, rung.expanded, rung.tokens) for rung in self.rungs], dtype=np.float64)
        increments = np.diff(sizes.reshape(-1, 3), axis=0, prepend=0.0).T
        return np.vstack([increments[2] / increments[0], increments])


def kind_of(view: View) -> Kind:
    return Kind(view.history.greedy, view.drawing, view.shares_nodes)


def shape_of(kind: Kind, budget: TreeBudget) -> TreeShape:
    return plan_shape(
        budget.max_nodes,
        budget.max_depth,
        greedy=kind.greedy,
        drawing=kind.drawing,
        shares_nodes=kind.shares_nodes,
    )


@lru_cache(maxsize=1024)
def levels_of(shape: TreeShape, *, greedy: bool) -> tuple[LevelView, ...]:
    return level_views(shape, greedy=greedy)


def ladders(view: View, *, beside_known: bool = False) -> tuple[Ladder, ...]:
    """Of a request: for every depth up to its own, the trees no deeper than that.

    beside_known: what is drafted counts only where nothing that is known already is kept, and takes the
    room that it leaves.
    """
    first, *deeper = view.history.acceptance.rates(view.max_depth)
    if beside_known:
        first *= 1.0 - view.known.first_chance
    rates = tuple(round(rate * _GRAIN) for rate in (first, *deeper))
    return _ladders(kind_of(view), view.room if beside_known else view.max_nodes, view.max_depth, rates)


@lru_cache(maxsize=8192)
def _ladders(kind: Kind, max_nodes: int, max_depth: int, rates: tuple[int, ...]) -> tuple[Ladder, ...]:
    exact = tuple(rate / _GRAIN for rate in rates)
    found: list[Ladder] = []
    rungs: list[Rung] = []
    for depth in range(1, max_depth + 1):
        for nodes in (size for size in _SIZES if depth <= size <= max_nodes):
            budget = TreeBudget(nodes, depth)
            shape = shape_of(kind, budget)
            tokens = expected_tokens(levels_of(shape, greedy=kind.greedy), exact)
            rungs.append(Rung(budget, shape.num_nodes, shape.num_expanded, shape.depth, tokens))
        found.append(Ladder(tuple(_hull(rungs))))
    return tuple(found)


def _hull(rungs: list[Rung]) -> list[Rung]:
    """The upper concave hull, from no tree at all: more nodes, more tokens, fewer of them a node."""
    hull: list[Rung] = []
    for rung in sorted(rungs, key=lambda rung: (rung.nodes, -rung.tokens)):
        if hull and rung.tokens <= hull[-1].tokens:
            continue
        while hull and _slope(hull[-2] if len(hull) > 1 else None, hull[-1]) <= _slope(hull[-1], rung):
            hull.pop()
        hull.append(rung)
    return [rung for rung in hull if rung.tokens > 0]


def _slope(low: Rung | None, high: Rung) -> float:
    nodes, tokens = (low.nodes, low.tokens) if low is not None else (0, 0.0)
    return (high.tokens - tokens) / (high.nodes - nodes) if high.nodes > nodes else float("inf")
