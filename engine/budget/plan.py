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
    seconds = costs.target_seconds(load.rows, load.context)
    seconds += costs.sample_seconds(load.sampling, load.expanded)
    if load.depth > 0:
        seconds += costs.draft_seconds(load.behind, load.draft_context)
    if load.depth > 1:
        width = max(1, round((load.expanded - load.drafting) / (load.depth - 1)))
        seconds += (load.depth - 1) * costs.draft_seconds(width, load.draft_context)
    return seconds * costs.whole_step(load.kind, load.sampling)


def choose(bids: Sequence[Bid], settled: Load, costs: StepCosts, *, margin: float = 0.0) -> Plan:
    """The best plan of all depths.

    settled: the rest of the step: single tokens of the bidders themselves, prompts, trees that are not
    up for choice. margin: share by which a plan must beat the one without the bidders' trees.
    """
    plain_seconds = step_seconds(settled, costs)
    best = settled.tokens / plain_seconds * (1.0 + margin)
    tokens, seconds = settled.tokens, plain_seconds
    load = settled
    bought: tuple[_Offers, int] | None = None
    for depth in range(1, max((len(bid.ladders) for bid in bids), default=0) + 1):
        offers = _offers(bids, depth)
        for count in _stops(len(offers.bidders)):
            offered = offers.load(settled, count)
            predicted = step_seconds(offered, costs)
            if offered.tokens / predicted > best:
                best = offered.tokens / predicted
                bought, tokens, seconds, load = (offers, count), offered.tokens, predicted, offered
    rungs: list[Rung | None] = [None] * len(bids)
    if bought is not None:
        offers, count = bought
        for bidder, place in zip(offers.bidders[:count], offers.places[:count], strict=True):
            rungs[bidder] = offers.ladders[bidder].rungs[place]
    return Plan(tuple(rungs), tokens, seconds, settled.tokens, plain_seconds, load)


@dataclass(frozen=True, slots=True)
class _Offers:
    """All steps up for one depth of drafting, those that give the most for a candidate first."""

    depth: int
    ladders: tuple[Ladder, ...]  # of every bid
    bidders: tuple[int, ...]  # [N] whose step it is
    places: tuple[int, ...]  # [N] which rung of the ladder it leads to
    sums: list[list[float]]  # [N][6] of the steps up to here: what `load` adds

    def load(self, settled: Load, count: int) -> Load:
        """The step with the first ``count`` of them."""
        nodes, expanded, tokens, drafting, behind, context = self.sums[count - 1]
        return Load(
            rows=settled.rows + int(nodes),
            context=settled.context + int(nodes),
            sampling=settled.sampling,
            tokens=settled.tokens + tokens,
            expanded=settled.expanded + int(expanded),
            drafting=settled.drafting + int(drafting),
            depth=max(settled.depth, self.depth),
            behind=settled.behind + int(behind),
            draft_context=settled.draft_context + int(context),
        )


def _offers(bids: Sequence[Bid], depth: int) -> _Offers:
    ladders = tuple(bid.ladders[min(depth, len(bid.ladders)) - 1] for bid in bids)
    sizes = [len(ladder.rungs) for ladder in ladders]
    bidders = np.repeat(np.arange(len(bids)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes])
    steps = np.concatenate([ladder.steps for ladder in ladders], axis=1)
    of_bid = np.array([(1.0, bid.behind, bid.length) for bid in bids]).T
    # A ladder's values fall, and the sort is stable: a request's steps stay in order.
    order = np.argsort(-steps[0], kind="stable")
    once = np.where(places == 0, of_bid[:, bidders], 0.0)
    sums = np.concatenate([steps[1:], once])[:, order].cumsum(axis=1)
    return _Offers(
        depth, ladders, tuple(bidders[order].tolist()), tuple(places[order].tolist()), sums.T.tolist()
    )


@lru_cache(maxsize=1024)
def _stops(count: int) -> tuple[int, ...]:
    """Numbers of steps to look at: every one of the first, then some between them and ``count``."""
    stops = [*range(1, min(count, _EACH) + 1)]
    while stops and stops[-1] < count:
        stops.append(min(count, -(-stops[-1] * 9 // 8)))
    return tuple(stops)
