"""The choice itself: trees for a whole batch that make it deliver the most tokens a second.

A step costs one forward of the target, whatever is in it, plus something for every candidate and every
drafted level. So candidates are bought one rung at a time, best value first, over all requests together,
for every depth of drafting; of all the steps on the way the one with the most expected tokens a second
is taken. The step without any tree is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .base import StepCosts
from .ladder import Ladder, Rung


@dataclass(frozen=True, slots=True)
class Bid:
    """A request whose tree is to be chosen."""

    ladders: tuple[Ladder, ...]  # by the depth of drafting
    length: int  # tokens so far
    behind: int  # tokens that the draft must run before it drafts


@dataclass(slots=True)
class Load:
    """What a step holds: first what is settled, then what is bought."""

    rows: int  # of the target's forward, without candidates that are still to be chosen
    context: int  # KV rows that they attend to
    sampling: int  # requests that get a token
    tokens: float  # that the step is expected to give
    expanded: int = 0
    drafting: int = 0  # requests with trees
    depth: int = 0
    behind: int = 0  # tokens the draft catches up with
    draft_context: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    rungs: tuple[Rung | None, ...]  # for every bid
    tokens: float  # expected of the step
    seconds: float  # predicted for it
    plain_tokens: float  # of the step without these trees
    plain_seconds: float

    @property
    def gain(self) -> float:
        """Tokens a second over those of the step without these trees: 1 where there are none."""
        return (self.tokens / self.plain_tokens) * (self.plain_seconds / self.seconds)


def step_seconds(load: Load, costs: StepCosts) -> float:
    """What a step with this load is predicted to take."""
    seconds = costs.target_seconds(load.rows, load.context)
    seconds += costs.sample_seconds(load.sampling, load.expanded)
    if load.depth > 0:
        seconds += costs.draft_seconds(load.behind, load.draft_context)
    if load.depth > 1:
        width = max(1, round((load.expanded - load.drafting) / (load.depth - 1)))
        seconds += (load.depth - 1) * costs.draft_seconds(width, load.draft_context)
    return seconds


def choose(bids: Sequence[Bid], settled: Load, costs: StepCosts, *, margin: float = 0.0) -> Plan:
    """The best plan of all depths.

    settled: the rest of the step: single tokens of the bidders themselves, prompts, trees that are not
    up for choice. margin: share by which a plan must beat the one without the bidders' trees.
    """
    plain_seconds = step_seconds(settled, costs)
    best = settled.tokens / plain_seconds * (1.0 + margin)
    plan = Plan((None,) * len(bids), settled.tokens, plain_seconds, settled.tokens, plain_seconds)
    for depth in range(1, max((len(bid.ladders) for bid in bids), default=0) + 1):
        chosen: list[Rung | None] = [None] * len(bids)
        load = replace(settled, depth=max(settled.depth, depth))
        for index, rung in _by_value(bids, depth):
            _buy(load, bids[index], chosen[index], rung)
            chosen[index] = rung
            seconds = step_seconds(load, costs)
            if load.tokens / seconds > best:
                best = load.tokens / seconds
                plan = Plan(tuple(chosen), load.tokens, seconds, settled.tokens, plain_seconds)
    return plan


def _by_value(bids: Sequence[Bid], depth: int) -> list[tuple[int, Rung]]:
    """All rungs, those that give the most for a candidate first; each request's in order."""
    offers = []
    for index, bid in enumerate(bids):
        before_nodes, before_tokens = 0, 0.0
        for place, rung in enumerate(bid.ladders[min(depth, len(bid.ladders)) - 1] if bid.ladders else ()):
            value = (rung.tokens - before_tokens) / (rung.nodes - before_nodes)
            offers.append((-value, place, index, rung))
            before_nodes, before_tokens = rung.nodes, rung.tokens
    offers.sort(key=lambda offer: offer[:3])
    return [(index, rung) for _, _, index, rung in offers]


def _buy(load: Load, bid: Bid, before: Rung | None, rung: Rung) -> None:
    if before is None:
        load.drafting += 1
        load.behind += bid.behind
        load.draft_context += bid.length
        nodes, expanded, tokens = rung.nodes, rung.expanded, rung.tokens
    else:
        nodes = rung.nodes - before.nodes
        expanded = rung.expanded - before.expanded
        tokens = rung.tokens - before.tokens
    load.rows += nodes
    load.context += nodes
    load.expanded += expanded
    load.tokens += tokens
