"""What a step costs: the cost table's forwards, and the laws and draws beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..cost.table import PLAIN, LearnedCosts
from .plain import COMPARED, PlainFactors, middle, within

_NEWEST = 0.1  # weight of the newest measurement
_MOST_OFF = 2.5  # times that whole steps may differ from the sum of their parts
_MOST_KEPT = 1.1  # times, of plain steps by an earlier server: more was a busy machine
_MOST_SEEN = 1.3  # times that a single one may seem to
_DRIFT = 0.0005  # of the factors of kinds that were not met
_MOST = 2.0  # times what was expected that one measurement may count for
_KEPT_STEPS = 16  # steps for which looked-up costs are kept
_CONTEXT_GRAIN = 256  # KV rows that make no difference to a choice


class Forwards(Protocol):
    """The part of a `CostTable` that is read here."""

    def target_seconds(self, tokens: int, context: int) -> float: ...

    def draft_seconds(self, tokens: int, context: int) -> float: ...


@dataclass(slots=True)
class _Factor:
    """What whole steps of one kind take over the sum of their parts."""

    value: float
    latest: tuple[float, ...] = ()  # of single steps

    def usual(self, seen: float) -> float:
        """One more was seen: what is usual of late."""
        self.latest = (*self.latest[1 - COMPARED :], seen)
        return middle(self.latest)


class MeasuredCosts:
    """The costs of this machine, as its own steps have shown them. Looked up once in a while only."""

    def __init__(self, table: Forwards, learned: LearnedCosts | None = None) -> None:
        """learned: by an earlier server, on the same machine and with the same models."""
        self._table = table
        # Seconds for each law made, and what a step with trees costs beyond its laws; by measured steps.
        unit = table.target_seconds(1, 1)
        self._law = unit * (learned.law if learned else 0.02)
        self._trees = unit * (learned.trees if learned else 0.02)
        self._steps = 0
        self._target: dict[tuple[int, int], float] = {}
        self._draft: dict[tuple[int, int], float] = {}
        known = learned.factors if learned else ()
        self._plain = PlainFactors(
            self,
            [
                (magnitude, min(within(value, _MOST_OFF), _MOST_KEPT))
                for kind, magnitude, value in known
                if kind == PLAIN
            ],
        )
        self._whole: dict[tuple[int, int], _Factor] = {  # of others, by kind and the magnitude of the batch
            (kind, magnitude): _Factor(within(value, _MOST_OFF))
            for kind, magnitude, value in known
            if kind != PLAIN
        }
        self._likest: dict[tuple[int, int], tuple[int, int]] = {}  # kinds that were not met: the nearest met

    def learned(self) -> LearnedCosts:
        """For the next server."""
        unit = self._table.target_seconds(1, 1)
        factors = (
            *((PLAIN, *known) for known in self._plain.all()),
            *((*key, factor.value) for key, factor in self._whole.items()),
        )
        return LearnedCosts(self._law / unit, self._trees / unit, factors)

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

    def whole_step(self, kind: int, batch: int) -> float:
        if kind == PLAIN:
            return self._plain.at(batch)
        factor = self._whole.get((kind, batch.bit_length())) or self._nearest(kind, batch.bit_length())
        return self._plain.at(batch) if factor is None else factor.value

    def observe_plain(self, batch: int, context: int, seconds: float) -> None:
        """A whole step that gave ``batch`` requests a token each and did nothing else took this long."""
        self._plain.observe(batch, context, seconds)
        self._drift(self._plain.at(batch))

    def observe_step(self, kind: int, batch: int, seconds: float, predicted: float) -> None:
        """A whole step with candidates took this long, and ``predicted`` was said of it. So predictions that
        are wrong for some steps, and not for others, do not stay wrong.

        The factor moves step by step and not far, and others drift towards it: a kind that was slow for a
        while is not given up for good.
        """
        key = (kind, batch.bit_length())
        if key not in self._whole:
            self._whole[key] = _Factor(self.whole_step(kind, batch))
            self._likest.clear()
        factor = self._whole[key]
        # `predicted` has the factor of the moment in it, the steps that are compared are without.
        usual = factor.usual(seconds / predicted * factor.value)
        factor.value = within(factor.value * within(usual / factor.value, _MOST_SEEN) ** _NEWEST, _MOST_OFF)
        self._drift(factor.value)

    def _drift(self, value: float) -> None:
        for factor in self._whole.values():
            factor.value += _DRIFT * (value - factor.value)

    def _nearest(self, kind: int, magnitude: int) -> _Factor | None:
        """Of the kind that is most like one that was not met yet."""
        if not self._whole:
            return None
        key = self._likest.get((kind, magnitude))
        if key is None:
            key = min(self._whole, key=lambda met: 2 * abs(met[1] - magnitude) + abs(met[0] - kind))
            self._likest[kind, magnitude] = key
        return self._whole[key]


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

    def whole_step(self, kind: int, batch: int) -> float:  # noqa: ARG002
        return 1.0


def reference_costs(device: str) -> ReferenceCosts:
    """Of a usual pair, its draft a small one, on a ``cpu`` or on ``cuda``: docs/controller.md."""
    if device == "cpu":
        return ReferenceCosts(row=0.027, free_rows=4, level=0.075, node=0.01, trees=0.035)
    return ReferenceCosts(row=0.002, free_rows=16, level=0.08, node=0.002, trees=0.03)
