"""The choice itself: trees for a whole batch that make it deliver the most tokens a second.

A step costs one forward of the target, whatever is in it, plus something for every candidate and every
drafted level. So candidates are bought one rung at a time, best value first, over all requests together,
for every depth of drafting; of all the steps on the way the one with the most expected tokens a second
is taken. The step without any tree is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..cost.table import PLAIN
from ..known_tree import KnownTree
from ..tree import TreeShape
from .base import StepCosts
from .ladder import Ladder, Rung

_EACH = 8  # steps up that are all looked at; of more, every eighth or so


@dataclass(frozen=True, slots=True)
class Bid:
    """A request whose tree is to be chosen."""

    ladders: tuple[Ladder, ...]  # by the depth of drafting; at least one
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

    @property
    def kind(self) -> int:
        """As `StepCosts.whole_step` tells steps apart."""
        return self.depth or (0 if self.expanded else PLAIN)

    def add_known(self, known: KnownTree) -> None:
        """Candidates that are known beforehand."""
        self.rows += known.num_nodes
        self.context += known.num_nodes
        self.expanded += len(known.inner)
        self.tokens += known.expected_tokens

    def add_tree(self, shape: TreeShape, *, behind: int, length: int) -> None:
        """A drafted tree of a request of ``length`` tokens, whose draft is ``behind`` by some of them."""
        self.rows += shape.num_nodes
        self.context += shape.num_nodes
        self.expanded += shape.num_expanded
        self.drafting += 1
        self.depth = max(self.depth, shape.depth)
        self.behind += behind
        self.draft_context += length


@dataclass(frozen=True, slots=True)
class Plan:
    rungs: tuple[Rung | None, ...]  # for every bid
    tokens: float  # expected of the step
    seconds: float  # predicted for it
    plain_tokens: float  # of the step without these trees
    plain_seconds: float
    load: Load  # the step itself

    @property
    def price(self) -> float:
        """Seconds that the step takes longer for each token expected of the trees."""
        return (self.seconds - self.plain_seconds) / max(1e-9, self.tokens - self.plain_tokens)

    @property
    def gain(self) -> float:
        """Tokens a second over those of the step without these trees: 1 where there are none."""
        return (self.tokens / self.plain_tokens) * (self.plain_seconds / self.seconds)


def step_seconds(load: Load, costs: StepCosts) -> float:
    """What a step with this load is predicted to take."""
    parts = _parts_seconds(
        costs,
        load.rows,
        load.context,
        load.sampling,
        load.expanded,
        load.drafting,
        load.depth,
        load.behind,
        load.draft_context,
    )
    return parts * costs.whole_step(load.kind, load.sampling)


def _parts_seconds(
    costs: StepCosts,
    rows: int,
    context: int,
    sampling: int,
    expanded: int,
    drafting: int,
    depth: int,
    behind: int,
    draft_context: int,
) -> float:
    """The sum of a step's parts, named as in `Load`."""
    seconds = costs.target_seconds(rows, context) + costs.sample_seconds(sampling, expanded)
    if depth > 0:
        seconds += costs.draft_seconds(behind, draft_context)
    if depth > 1:
        width = max(1, round((expanded - drafting) / (depth - 1)))
        seconds += (depth - 1) * costs.draft_seconds(width, draft_context)
    return seconds


def choose(bids: Sequence[Bid], settled: Load, costs: StepCosts, *, margin: float = 0.0) -> Plan:
    """The best plan of all depths.

    settled: the rest of the step: single tokens of the bidders themselves, prompts, trees that are not
    up for choice. margin: share by which a plan must beat the one without the bidders' trees.
    """
    plain_seconds = step_seconds(settled, costs)
    best = settled.tokens / plain_seconds * (1.0 + margin)
    tokens, seconds = settled.tokens, plain_seconds
    bought: tuple[_Offers, int] | None = None
    for depth in range(1, max((len(bid.ladders) for bid in bids), default=0) + 1):
        offers = _offers(bids, depth)
        deepest = max(settled.depth, depth)
        whole = costs.whole_step(deepest, settled.sampling)
        for count in _stops(len(offers.bidders)):
            nodes, expanded, more, drafting, behind, context = offers.sums[count - 1]
            predicted = whole * _parts_seconds(
                costs,
                settled.rows + nodes,
                settled.context + nodes,
                settled.sampling,
                settled.expanded + expanded,
                settled.drafting + drafting,
                deepest,
                settled.behind + behind,
                settled.draft_context + context,
            )
            if (settled.tokens + more) / predicted > best:
                tokens, seconds = settled.tokens + more, predicted
                best, bought = tokens / seconds, (offers, count)
    if bought is None:
        return Plan((None,) * len(bids), tokens, seconds, tokens, plain_seconds, settled)
    offers, count = bought
    rungs: list[Rung | None] = [None] * len(bids)
    for bidder, place in zip(offers.bidders[:count], offers.places[:count], strict=True):
        rungs[bidder] = offers.ladders[bidder].rungs[place]
    load = offers.load(settled, count)
    return Plan(tuple(rungs), tokens, seconds, settled.tokens, plain_seconds, load)


@dataclass(frozen=True, slots=True)
class _Offers:
    """All steps up for one depth of drafting, those that give the most for a candidate first."""

    depth: int
    ladders: tuple[Ladder, ...]  # of every bid
    bidders: Sequence[int]  # [N] whose step it is
    places: Sequence[int]  # [N] which rung of the ladder it leads to
    # [N] of the steps up to here: nodes, nodes expanded, tokens, and requests that draft with the tokens
    # they catch up with and those that they have
    sums: Sequence[tuple[int, int, float, int, int, int]]

    def load(self, settled: Load, count: int) -> Load:
        """The step with the first ``count`` of them."""
        nodes, expanded, tokens, drafting, behind, context = self.sums[count - 1]
        return Load(
            rows=settled.rows + nodes,
            context=settled.context + nodes,
            sampling=settled.sampling,
            tokens=settled.tokens + tokens,
            expanded=settled.expanded + expanded,
            drafting=settled.drafting + drafting,
            depth=max(settled.depth, self.depth),
            behind=settled.behind + behind,
            draft_context=settled.draft_context + context,
        )


def _offers(bids: Sequence[Bid], depth: int) -> _Offers:
    ladders = tuple(bid.ladders[min(depth, len(bid.ladders)) - 1] for bid in bids)
    if len(bids) == 1:  # in order as they are, and a dozen small arrays would take longer
        [bid], [ladder] = bids, ladders
        alone = [(rung.nodes, rung.expanded, rung.tokens, 1, bid.behind, bid.length) for rung in ladder.rungs]
        return _Offers(depth, ladders, (0,) * len(alone), range(len(alone)), alone)
    sizes = [len(ladder.rungs) for ladder in ladders]
    bidders = np.repeat(np.arange(len(bids)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes])
    values, nodes, expanded, tokens = np.concatenate([ladder.steps for ladder in ladders], axis=1)
    of_bid = np.array([(1, bid.behind, bid.length) for bid in bids]).T
    # A ladder's values fall, and the sort is stable: a request's steps stay in order.
    order = np.argsort(-values, kind="stable")
    once = np.where(places == 0, of_bid[:, bidders], 0)
    counts = np.vstack([nodes, expanded, once])[:, order].astype(np.int64).cumsum(axis=1).tolist()
    sums = [*zip(*counts[:2], tokens[order].cumsum().tolist(), *counts[2:], strict=True)]
    return _Offers(depth, ladders, bidders[order].tolist(), places[order].tolist(), sums)


@lru_cache(maxsize=1024)
def _stops(count: int) -> tuple[int, ...]:
    """Numbers of steps to look at: every one of the first, then some between them and ``count``."""
    stops = [*range(1, min(count, _EACH) + 1)]
    while stops and stops[-1] < count:
        stops.append(min(count, -(-stops[-1] * 9 // 8)))
    return tuple(stops)
