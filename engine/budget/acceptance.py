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
        views.append(LevelView(level.num_children ** _TRIES_EXPONENT[greedy], coverage))
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

    def observe(self, levels: Sequence[LevelView], num_kept: int) -> None:
        """One step's tree, of which a path of ``num_kept`` candidates was kept."""
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

    def rate(self, depth: int) -> float:
        """Of a single child at ``depth`` (0: of the root), in [0, 0.98]."""
        prior = self.default_rate if self.prior is None else self.prior.rate(depth)
        if depth >= len(self.depths):
            # Never tried here: no better than the depth above is known to be.
            return prior if depth == 0 else min(prior, self.rate(depth - 1))
        counts = self.depths[depth]
        tries = counts.tries / counts.tests
        share = (counts.kept + self.prior_weight * kept_share(prior, tries)) / (
            counts.tests + self.prior_weight
        )
        return float(min(_HIGHEST, 1.0 - max(0.0, 1.0 - share) ** (1.0 / tries)))

    def rates(self, max_depth: int) -> tuple[float, ...]:
        return tuple(self.rate(depth) for depth in range(max_depth))
