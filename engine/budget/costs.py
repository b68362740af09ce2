"""What a step costs: the cost table's forwards, and the laws and draws beside them."""

from __future__ import annotations

from typing import Protocol

_NEWEST, _NEWEST_STEP = 0.1, 0.03  # weights of the newest measurement: of a part, of a whole step
_MOST_OFF = 1.3  # times that whole steps may differ from the sum of their parts
_DRIFT = 0.003  # of the factors of depths that were not met
_MOST = 2.0  # times what was expected that one measurement may count for
_KEPT_STEPS = 16  # steps for which looked-up costs are kept
_CONTEXT_GRAIN = 256  # KV rows that make no difference to a choice


class Forwards(Protocol):
    """The part of a `CostTable` that is read here."""

    def target_seconds(self, tokens: int, context: int) -> float: ...

    def draft_seconds(self, tokens: int, context: int) -> float: ...


class MeasuredCosts:
    """The costs of this machine, as its own steps have shown them. Looked up once in a while only."""

    def __init__(self, table: Forwards) -> None:
        self._table = table
        # Seconds for each law made, and what a step with trees costs beyond its laws; by measured steps.
        self._law = 0.02 * table.target_seconds(1, 1)
        self._trees = 0.02 * table.target_seconds(1, 1)
        self._whole: dict[int, float] = {}  # by depth
        self._steps = 0
        self._target: dict[tuple[int, int], float] = {}
        self._draft: dict[tuple[int, int], float] = {}

    def target_seconds(self, tokens: int, context: int) -> float:
        key = (tokens, context // _CONTEXT_GRAIN)
        seconds = self._target.get(key)
        if seconds is None:
            seconds = self._target[key] = self._table.target_seconds(tokens, context)
        return seconds

    def draft_seconds(self, tokens: int, context: int) -> float:
        key = (tokens, context // _CONTEXT_GRAIN)
        seconds = self._draft.get(key)
        if seconds is None:
            seconds = self._draft[key] = self._table.draft_seconds(tokens, context)
        return seconds

    def sample_seconds(self, rows: int, expanded: int) -> float:
        return self._law * (rows + expanded) + (self._trees if expanded else 0.0)

    def observe_sample(self, rows: int, expanded: int, seconds: float) -> None:
        """A step's laws, tests and draws took this long. Steps without trees tell what a law costs."""
        seconds = min(seconds, _MOST * self.sample_seconds(rows, expanded))
        if expanded:
            rest = max(0.0, seconds - self._law * (rows + expanded))
            self._trees += _NEWEST * (rest - self._trees)
        elif rows:
            self._law += _NEWEST * (seconds / rows - self._law)
        self._steps += 1
        if self._steps % _KEPT_STEPS == 0:
            self._target.clear()
            self._draft.clear()

    def whole_step(self, depth: int) -> float:
        # A depth that was not met yet is taken to be like the one nearest to it.
        if depth in self._whole or not self._whole:
            return self._whole.get(depth, 1.0)
        return self._whole[min(self._whole, key=lambda known: abs(known - depth))]

    def observe_step(self, depth: int, seconds: float, predicted: float) -> None:
        """A whole step took this long, and ``predicted`` was said of it. So predictions that are wrong
        for some trees, and not for others, do not stay wrong.

        The factor moves slowly and not far, and those of other depths drift towards it: a depth that
        was slow once, its first time, is not given up for good.
        """
        usual = self.whole_step(depth)
        seen = min(max(seconds / predicted, 1 / _MOST_OFF), _MOST_OFF)
        factor = usual * seen**_NEWEST_STEP
        self._whole[depth] = min(max(factor, 1 / _MOST_OFF), _MOST_OFF)
        for other in self._whole.keys() - {depth}:
            self._whole[other] += _DRIFT * (factor - self._whole[other])


class ReferenceCosts:
    """Costs that are part of the build: in units of a plain step of one request."""

    def __init__(self, *, row: float, free_rows: int, level: float, node: float, trees: float) -> None:
        """row: a candidate's share of a forward, beyond ``free_rows`` that cost nothing. level: a drafted
        level. node: the law of a node that has children. trees: of a step that has any.
        """
        self._row = row
        self._free_rows = free_rows
        self._level = level
        self._node = node
        self._trees = trees

    def target_seconds(self, tokens: int, context: int) -> float:  # noqa: ARG002  the same at any length
        return 1.0 + self._row * max(0, tokens - self._free_rows)

    def draft_seconds(self, tokens: int, context: int) -> float:  # noqa: ARG002
        return self._level + self._row * self._level * tokens

    def sample_seconds(self, rows: int, expanded: int) -> float:
        return self._node * (rows + expanded) + (self._trees if expanded else 0.0)

    def whole_step(self, depth: int) -> float:  # noqa: ARG002
        return 1.0


def reference_costs(device: str) -> ReferenceCosts:
    """Of a usual pair, its draft a small one, on a ``cpu`` or on ``cuda``: docs/controller.md."""
    if device == "cpu":
        return ReferenceCosts(row=0.027, free_rows=4, level=0.075, node=0.01, trees=0.035)
    return ReferenceCosts(row=0.002, free_rows=16, level=0.08, node=0.002, trees=0.03)
