"""From a step's own timings to the cost table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from resispec.models.base import Segment

from ..tree import TreeShape
from .prefill import PrefillCosts
from .table import CostTable


class Drafted(Protocol):
    """What the costs need to know of one request's drafting."""

    @property
    def catch_up(self) -> tuple[int, ...]: ...

    @property
    def root(self) -> int: ...

    @property
    def shape(self) -> TreeShape | None: ...


def feed_target(table: CostTable, prefill: PrefillCosts, segments: Sequence[Segment], seconds: float) -> None:
    """One forward of the target."""
    tokens = context = 0
    for segment in segments:
        tokens += segment.length
        context += segment.kv_length
    # Single tokens alone are what the table was measured with.
    only_singles = tokens == len(segments)
    table.observe_target(tokens, context, seconds if only_singles else prefill.observe(segments, seconds))


def feed_draft(table: CostTable, items: Sequence[Drafted], seconds: float) -> None:
    """All levels of a step's trees, which were timed together: each by its share of what was expected."""
    levels = draft_levels(items)
    expected = [table.draft_seconds(tokens, context) for tokens, context in levels]
    total = sum(expected)
    if total > 0:
        for (tokens, context), share in zip(levels, expected, strict=True):
            table.observe_draft(tokens, context, seconds * share / total)


def draft_levels(items: Sequence[Drafted]) -> list[tuple[int, int]]:
    """(tokens, context) of the draft's forwards: catching up to the roots, then level by level."""
    if not items:
        return []
    levels = [(sum(len(item.catch_up) for item in items), sum(item.root + 1 for item in items))]
    depth = max((item.shape.depth for item in items if item.shape is not None), default=0)
    for level in range(1, depth):
        growing = [item for item in items if item.shape is not None and item.shape.depth > level]
        tokens = sum(item.shape.levels[level].expand for item in growing if item.shape is not None)
        levels.append((tokens, sum(item.root + 1 for item in growing)))
    return levels
