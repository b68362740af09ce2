"""Running statistics of what was kept, by depth: decayed counts around a prior.

Siblings compete for the same token, so ``k`` of them are worth fewer than ``k`` candidates alone: as many
as ``tries(k) = k ** e``. A level of ``k`` children is kept with probability ``1 - (1 - a) ** tries(k)``,
where ``a`` is the rate of a single child. With it, what was seen of one shape predicts another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..tree import TreeShape

# Fitted to the kept share of 1 to 4 children of a node (docs/controller.md): greedy, and sampled.
_TRIES_EXPONENT = {True: 0.65, False: 0.42}
_COVERAGE_EXPONENT = 0.5  # of the expanded share of a level: the expanded nodes are its most likely ones
_HIGHEST = 0.98  # a rate of 1 would promise any depth


@dataclass(frozen=True, slots=True)
class LevelView:
    """What matters of one level of a shape."""

    tries: float  # what its children of one node are worth
    coverage: float  # chance that the node kept above is one that has children here


def level_views(shape: TreeShape, *, greedy: bool) -> tuple[LevelView, ...]:
    above = 1
    views = []
    for level in shape.levels:
        coverage = min(1.0, level.expand / above) ** _COVERAGE_EXPONENT
        children = level.num_nodes / level.expand
        views.append(LevelView(children ** _TRIES_EXPONENT[greedy], coverage))
        above = level.num_nodes
    return tuple(views)


def kept_share(rate: float, tries: float) -> float:
    """Chance that one of several children is kept, from the rate of a single one."""
    return float(1.0 - (1.0 - rate) ** tries)


def expected_tokens(levels: Sequence[LevelView], rates: Sequence[float]) -> float:
    """Candidates that a tree is expected to add to a step. Depths beyond ``rates`` go on as its last."""
    total, reach = 0.0, 1.0
    for depth, level in enumerate(levels):
        rate = rates[min(depth, len(rates) - 1)]
        reach *= level.coverage * kept_share(rate, level.tries)
        total += reach
    return total


@dataclass(slots=True)
class _Depth:
    """Decayed sums over the steps that may have tested a node's children at one depth."""

    tests: float = 0.0
    kept: float = 0.0
    tries: float = 0.0  # summed over the tests


@dataclass(slots=True)
class Acceptance:
    """Rates of single children by depth, for one request or for a server at one temperature.

    memory: tests after which an old one counts 1/e. prior_weight: tests that the prior is worth.
    prior: where rates begin; None: at ``default_rate``.
    """

    memory: float
    prior_weight: float
    prior: Acceptance | None = None
    default_rate: float = 0.5
    depths: list[_Depth] = field(default_factory=list)
    _rates: tuple[float, ...] = ()  # as last asked for
    _is_stale: bool = True

    def observe(self, levels: Sequence[LevelView], num_kept: int) -> None:
        """One step's tree, of which a path of ``num_kept`` candidates was kept."""
        self._is_stale = True
        decay = 1.0 - 1.0 / self.memory
        for depth, level in enumerate(levels[: num_kept + 1]):
            if depth == len(self.depths):
                self.depths.append(_Depth())
            counts = self.depths[depth]
            # Below a kept node without children nothing was tested. Of levels that kept nothing, this is
            # the share that was, if every other test keeps something.
            weight = 1.0 if depth < num_kept else level.coverage / (2.0 - level.coverage)
            counts.tests = decay * counts.tests + weight
            counts.tries = decay * counts.tries + weight * level.tries
            counts.kept = decay * counts.kept + (depth < num_kept)

    @property
    def num_tests(self) -> float:
        """Of a first level, decayed."""
        return self.depths[0].tests if self.depths else 0.0

    def rate(self, depth: int) -> float:
        """Of a single child at ``depth`` (0: of the root), in [0, 0.98]."""
        return self.rates(depth + 1)[depth]

    def rates(self, max_depth: int) -> tuple[float, ...]:
        """Of single children at the first ``max_depth`` depths."""
        if len(self._rates) < max_depth or self._is_stale:
            self._rates = self._estimate(max(max_depth, len(self._rates)))
            self._is_stale = False
        return self._rates[:max_depth]

    def _estimate(self, max_depth: int) -> tuple[float, ...]:
        priors = (self.default_rate,) * max_depth if self.prior is None else self.prior.rates(max_depth)
        rates: list[float] = []
        for depth, prior in enumerate(priors):
            if depth >= len(self.depths):
                # Never tried here: no better than the depth above is known to be. Where nobody knows more,
                # as good as that, or it would never be tried.
                guess = prior if self.prior is not None or not rates else rates[-1]
                rates.append(min(guess, rates[-1]) if rates else guess)
                continue
            counts = self.depths[depth]
            tries = counts.tries / counts.tests
            kept = counts.kept + self.prior_weight * kept_share(prior, tries)
            share = min(1.0, kept / (counts.tests + self.prior_weight))
            rates.append(min(_HIGHEST, 1.0 - (1.0 - share) ** (1.0 / tries)))
        return tuple(rates)
