"""The choice for a request with a seed: as if it were alone, on costs that are part of the build."""

from __future__ import annotations

from functools import lru_cache

from .base import View
from .costs import ReferenceCosts
from .drafting import STEADY_CATCH_UP
from .ladder import Ladder, Rung, ladders
from .plan import Bid, Load, choose, step_seconds


def alone_rung(view: View, costs: ReferenceCosts, *, margin: float) -> Rung | None:
    """The best tree to draft beside what is known; None: no tree. margin: as of `choose`."""
    return _rung(ladders(view, beside_known=True), costs, margin, *_known(view))


def known_pays(view: View, costs: ReferenceCosts) -> bool:
    """Whether what is known, and nothing drafted, is worth a step with candidates."""
    return _pays(costs, *_known(view))


def _known(view: View) -> tuple[int, int, float]:
    """Nodes, nodes with children, and tokens expected, rounded so that choices can be kept."""
    known = view.known
    return known.num_nodes, len(known.inner), round(known.expected_tokens, 1)


@lru_cache(maxsize=4096)
def _rung(
    options: tuple[Ladder, ...],
    costs: ReferenceCosts,
    margin: float,
    nodes: int,
    expanded: int,
    tokens: float,
) -> Rung | None:
    load = _load(nodes, expanded, tokens)
    return choose([Bid(options, 0, STEADY_CATCH_UP)], load, costs, margin=margin).rungs[0]


@lru_cache(maxsize=1024)
def _pays(costs: ReferenceCosts, nodes: int, expanded: int, tokens: float) -> bool:
    plain, load = _load(0, 0, 0.0), _load(nodes, expanded, tokens)
    return load.tokens / step_seconds(load, costs) > plain.tokens / step_seconds(plain, costs)


def _load(nodes: int, expanded: int, tokens: float) -> Load:
    return Load(rows=1 + nodes, context=0, sampling=1, tokens=1.0 + tokens, expanded=expanded)
