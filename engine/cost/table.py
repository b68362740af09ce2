"""The cost table: what a forward takes, by the tokens it runs and the KV rows it attends to."""

from __future__ import annotations

from collections import Counter
from math import exp, isfinite, log
from pathlib import Path
from typing import Self

import msgspec

from .surface import Surface

# An observation's surprise (the logarithm of seen over expected) moves the table by these shares of it.
_PACE_SHARE = 0.05  # everything together: a machine that others have made slower, or left alone
_LOCAL_SHARE = 0.1  # the knots around what was seen
_SETTLED = 8  # steps of about a size before half of what they tell of the pace is believed
_MOST_SURPRISE = 0.4  # a stall of a second says no more than a step of 1.5 times what was expected
_MOST_PENDING = 64  # observations
_VERSION = 1


class CostFileError(ValueError):
    """A file that holds no cost table, or another one's."""


class _Grid(msgspec.Struct):
    tokens: tuple[int, ...]
    context: tuple[int, ...]
    seconds: list[list[float]]


PLAIN = -1  # the kind of a step without candidates; 0: known ones only; else the levels that are drafted


class LearnedCosts(msgspec.Struct, frozen=True):
    """What steps have taught of their costs beside the forwards: `MeasuredCosts` knows what it means."""

    law: float  # both in forwards of the target over one token
    trees: float
    factors: tuple[tuple[int, int, float], ...]  # kind of step, magnitude of the batch, factor


class _File(msgspec.Struct):
    version: int
    key: str
    target: _Grid
    draft: _Grid | None
    learned: LearnedCosts | None = None


class CostTable:
    """Seconds of a target's forward and of a drafted level. Positive, rising with tokens and context.

    Built from measurements and corrected by every step since. An update moves the table by a bounded
    share, so that the table follows what is usual and a stall hardly moves it; a third of it goes to the
    *pace*, which all entries share, so that those seldom met keep up with a machine whose load changes.
    Less of it while forwards of about that size are new: then the entry may be wrong, and not the machine
    slower.

    Observations wait until the table is asked again. After a forward, which leaves nothing of all this in the
    processor's caches, one by itself takes as long as a dozen together.
    """

    def __init__(self, target: Surface, draft: Surface | None = None, *, measured: bool = True) -> None:
        """measured: False for a guess, whose first observation sets the pace outright."""
        self._target = target
        self._draft = draft
        self._log_pace = 0.0
        self._pace = 1.0
        self._measured = measured
        self._met: set[tuple[bool, int]] = set()  # draft or not, tokens: the first of each makes kernels
        self._seen: Counter[tuple[bool, int]] = Counter()  # by draft or not and the magnitude of the tokens
        self._pending: list[tuple[Surface, int, int, float]] = []  # with tokens, context and seconds
        self.learned: LearnedCosts | None = None  # as it was measured, or as the file had it

    @classmethod
    def guess(cls, *, draft: bool) -> CostTable:
        """Before anything was measured: the shape of a small model's costs on two CPU cores."""
        target = Surface((1, 64), (256, 4096), [[0.02, 0.025], [0.07, 0.1]])
        level = Surface((1, 64), (256, 4096), [[0.003, 0.004], [0.01, 0.015]])
        return cls(target, level if draft else None, measured=False)

    def target_seconds(self, tokens: int, context: int) -> float:
        """Of one forward of the target over ``tokens`` rows that attend to ``context`` KV rows in all."""
        self._settle()
        return self._pace * self._target.at(tokens, context)

    def draft_seconds(self, tokens: int, context: int) -> float:
        """Of one level: the draft's forward over ``tokens`` nodes, and choosing children. 0: no draft."""
        self._settle()
        return 0.0 if self._draft is None else self._pace * self._draft.at(tokens, context)

    def observe_target(self, tokens: int, context: int, seconds: float) -> None:
        self._pending.append((self._target, tokens, context, seconds))
        if len(self._pending) >= _MOST_PENDING:
            self._settle()

    def observe_draft(self, tokens: int, context: int, seconds: float) -> None:
        if self._draft is not None:
            self._pending.append((self._draft, tokens, context, seconds))

    def set_pace(self, tokens: int, context: int, seconds: float) -> None:
        """Scale everything so that a target's forward takes ``seconds``: the machine may be slower today."""
        self._settle()
        self._log_pace = log(seconds / self._target.at(tokens, context))
        self._pace = exp(self._log_pace)

    def _settle(self) -> None:
        """Take in what was observed, in its order."""
        if self._pending:
            pending, self._pending = self._pending, []
            for observed in pending:
                self._observe(*observed)

    def _observe(self, surface: Surface, tokens: int, context: int, seconds: float) -> None:
        if not (isfinite(seconds) and seconds > 0 and tokens > 0):
            return
        is_draft = surface is self._draft
        if self._measured and (is_draft, tokens) not in self._met:
            self._met.add((is_draft, tokens))
            return
        surprise = log(seconds / (self._pace * surface.at(tokens, context)))
        if not self._measured:
            self._measured = True
            self._log_pace += surprise
        else:
            surprise = min(max(surprise, -_MOST_SURPRISE), _MOST_SURPRISE)
            size = (is_draft, tokens.bit_length())
            seen = self._seen[size]
            self._seen[size] += 1
            self._log_pace += _PACE_SHARE * seen / (seen + _SETTLED) * surprise
            surface.shift(tokens, context, _LOCAL_SHARE * surprise)
        self._pace = exp(self._log_pace)

    def save(self, path: Path, key: str, learned: LearnedCosts | None = None) -> None:
        """Write the table, as it was measured or has become. key: what it holds for. Raises OSError."""
        draft = None if self._draft is None else self._grid(self._draft)
        file = _File(_VERSION, key, self._grid(self._target), draft, learned)
        temporary = path.with_name(f".{path.name}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(file))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, key: str | None = None) -> Self:
        """Raises OSError where there is no file, CostFileError for one that holds no table for ``key``.

        key: None: whatever it was measured for.
        """
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            if file.version != _VERSION or key not in (None, file.key):
                raise CostFileError("it was measured for something else")
            draft = None if file.draft is None else _surface(file.draft)
            table = cls(_surface(file.target), draft)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise CostFileError(str(error)) from error
        table.learned = file.learned
        return table

    def _grid(self, surface: Surface) -> _Grid:
        self._settle()
        seconds = [[self._pace * value for value in row] for row in surface.values]
        return _Grid(surface.tokens, surface.context, seconds)


def _surface(grid: _Grid) -> Surface:
    return Surface(grid.tokens, grid.context, grid.seconds)
