"""The contract between the scheduler, which asks, and the controller, which decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from ..drawing import Drawing
from ..known_tree import NOTHING_KNOWN, KnownTree
from ..request import SpeculationMode
from .history import History


class Off(StrEnum):
    """Why a request is stepped without a tree. Values are the metric's labels."""

    REQUEST = "request"  # it, or the server's settings, asked for none
    NO_GAIN = "no_gain"  # the controller predicts that a tree would not pay
    BASELINE = "baseline"  # a step that measures what plain decoding costs
    CATCH_UP = "catch_up"  # the draft has still to run tokens it did not see
    LOAD = "load"  # no candidates are left for it
    DRAFT_CONTEXT = "draft_context"  # it is longer than the draft can read
    KV_MEMORY = "kv_memory"


@dataclass(frozen=True, slots=True)
class TreeBudget:
    """The most that a request's tree may hold in one step."""

    max_nodes: int  # candidates, the root not counted
    max_depth: int
    proposers: tuple[str, ...] | None = None  # None: all that the request may use


class Choice(msgspec.Struct, frozen=True, gc=False):
    """What one request gets: a tree, or none and why not."""

    budget: TreeBudget | None
    off: Off | None = None
    catch_up: int = 0  # without a tree: tokens that the draft runs, to have less to do when there is one
    known: bool = True  # what is known is verified, whether or not something is drafted beside it


class View(msgspec.Struct, frozen=True):
    """One decoding request, as the controller sees it."""

    history: History
    mode: SpeculationMode
    is_free: bool  # its tree may depend on the load and on times
    max_nodes: int  # of a tree that has drafted ones; 0: nothing can be drafted, and ``off`` says why
    max_depth: int
    off: Off | None
    length: int  # tokens so far
    behind: int  # tokens the draft has not run, the last one included
    drawing: Drawing
    shares_nodes: bool
    known: KnownTree = NOTHING_KNOWN  # what may be verified beside what is drafted
    forced: int = 0  # tokens that are run before the last one, in the same step
    falls_behind: bool = False  # its draft misses tokens again and again: those that a grammar forces

    @property
    def is_shared(self) -> bool:
        """Whether its candidates are weighed against those of others."""
        return self.is_free and self.mode is SpeculationMode.AUTO

    @property
    def room(self) -> int:
        """Candidates that may be drafted beside all that is known."""
        return max(0, self.max_nodes - self.known.num_nodes)


@dataclass(frozen=True, slots=True)
class KnownLimit:
    """What known candidates must be worth."""

    max_nodes: int | None  # None: as many as the settings allow
    least_chance: float  # of being kept


class StepCosts(Protocol):
    """Seconds of a step's parts. Positive, and never less for more tokens."""

    def target_seconds(self, tokens: int, context: int) -> float:
        """One forward of ``tokens`` rows that attend to ``context`` KV rows in all."""
        ...

    def draft_seconds(self, tokens: int, context: int) -> float:
        """One drafted level of ``tokens`` nodes, their children chosen."""
        ...

    def sample_seconds(self, rows: int, expanded: int) -> float:
        """Laws, tests and draws of ``rows`` requests with ``expanded`` nodes that have children."""
        ...

    def whole_step(self, kind: int, batch: int) -> float:
        """What a step of ``batch`` requests takes, over the sum of its parts.

        kind: levels that are drafted; 0: there are known candidates only; -1 (`PLAIN`): none at all.
        """
        ...
