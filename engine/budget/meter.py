"""How long each step would have taken without trees, and so what they gained."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from ..cost.table import PLAIN
from ..request import SpeculationMode
from ..tree import CandidateTree
from .baseline import Baseline
from .costs import MeasuredCosts
from .plan import Load, step_seconds

_LOOKED, _PASSED = 4, 28  # steps of requests without trees that are looked at in a row, and then not


class Asked(Protocol):
    """What is read of one request."""

    @property
    def mode(self) -> SpeculationMode: ...


class Item(Protocol):
    """What is read of one planned sequence."""

    @property
    def sequence(self) -> Asked: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def tree(self) -> CandidateTree | None: ...

    @property
    def catch_up(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def decodes(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PlainStep:
    """The step without trees that a step stands for."""

    batch: int  # requests that decode
    context: int  # their KV rows
    rows: int  # of the target's forward, prompts included and candidates not
    real: Load  # what the real step holds
    is_plain: bool  # the real step held nothing but single tokens
    catches_up: bool  # a draft ran tokens that it had missed, and grew nothing
    seconds: float  # that plain decoding would have taken for a token of each
    prompt_seconds: float  # more, for the prompts in it
    is_measured: bool  # from steps of this batch size that were plain


@dataclass(frozen=True, slots=True)
class _Open:
    """A step whose time is over when the next one begins."""

    step: PlainStep
    began: float  # seconds
    choosing_seconds: float
    is_new: bool  # the first forward over so many rows
    follows_plain: bool


class SpeedMeter:
    """Keeps the baseline, and the costs beside the forwards, right from every step's own times.

    A step lasts from its begin to the begin of the next one that follows at once: what is left to do of it
    once its tokens are known, and between the two, is its own. Of plain steps only those count that come
    behind a plain one: behind one with trees the same step takes longer, for the processor's caches hold
    what trees need, and where all is plain there is none of that.
    """

    def __init__(self, costs: MeasuredCosts) -> None:
        self._costs = costs
        self._baseline = Baseline(costs)
        self._open: _Open | None = None
        self._met: set[int] = set()  # rows of the forwards so far
        self._without = 0  # steps of requests that all go without trees

    def looks_at(self, items: SequenceOf[Item]) -> bool:
        """Whether `plain_step` and `finish` are to be told of a step. If not, it is over with that.

        Requests that go without trees report nothing of it, and what their steps say of plain decoding to
        those that come later, a part of them says as well.
        """
        if any(item.sequence.mode is not SpeculationMode.OFF for item in items):
            return True
        place, self._without = self._without % (_LOOKED + _PASSED), self._without + 1
        if place < _LOOKED:
            return True
        self._open = None
        return False

    def plain_step(self, items: SequenceOf[Item]) -> PlainStep:
        """Of a step that is about to be committed."""
        batch = context = forced = prompt_rows = prompt_context = 0
        catches_up = has_trees = has_prompts = False
        for item in items:
            if item.decodes:
                batch += 1
                context += item.length
                forced += item.num_tokens - 1
            else:
                has_prompts = True
                prompt_rows += item.num_tokens
                prompt_context += item.length
            catches_up |= item.catch_up > 0
            has_trees |= item.tree is not None
        rows = batch + prompt_rows
        prompt_seconds = 0.0
        if has_prompts and batch:
            with_prompts = self._costs.target_seconds(rows, context + prompt_context)
            prompt_seconds = with_prompts - self._costs.target_seconds(batch, context)
        return PlainStep(
            batch=batch,
            context=context,
            rows=rows,
            real=_load(items if has_trees else (), rows + forced, context + prompt_context, batch),
            is_plain=bool(batch) and not (has_prompts or forced or catches_up or has_trees),
            catches_up=catches_up,
            seconds=self._baseline.seconds(batch, context) if batch else 0.0,
            prompt_seconds=prompt_seconds,
            is_measured=self._baseline.is_measured(batch),
        )

    def finish(
        self, step: PlainStep, sample_seconds: float, choosing_seconds: float, began: float, *, more: bool
    ) -> None:
        """A step's times. began: seconds, monotonic; more: another one follows at once.

        choosing_seconds: that went into the choice of trees, which plain decoding has none of.
        """
        last, self._open = self._open, None
        if last is not None:
            self._learn(last, began - last.began)
        if step.batch and step.rows == step.batch:
            self._costs.observe_sample(step.batch, step.real.expanded, sample_seconds)
        is_new = step.real.rows not in self._met  # kernels are made for it, which says nothing of the next
        self._met.add(step.real.rows)
        if more:
            self._open = _Open(
                step, began, choosing_seconds, is_new, follows_plain=last is not None and last.step.is_plain
            )

    def forget(self) -> None:
        """A step failed, whose time means nothing."""
        self._open = None

    def _learn(self, done: _Open, seconds: float) -> None:
        """A step took so long, with all that it left to do."""
        step = done.step
        if step.is_plain:
            if done.follows_plain and not done.is_new:
                self._costs.observe_plain(step.batch, step.context, seconds)
                self._baseline.observe(step.batch, step.context, seconds - done.choosing_seconds)
        elif step.batch and step.rows == step.batch and step.real.kind != PLAIN and not step.catches_up:
            predicted = step_seconds(step.real, self._costs)
            self._costs.observe_step(step.real.kind, step.batch, seconds, predicted)


def _load(items: SequenceOf[Item], rows: int, context: int, batch: int) -> Load:
    """What a step holds, but for drafts that only catch up.

    items: those with trees, at least. rows, context: of all of them, candidates left out.
    """
    trees = [(item, item.tree) for item in items if item.tree is not None]
    drafting = [(item, tree.shape) for item, tree in trees if tree.shape.levels]
    nodes = sum(tree.num_nodes for _, tree in trees)
    return Load(
        rows=rows + nodes,
        context=context + nodes,
        sampling=batch,
        tokens=float(batch),
        expanded=sum(tree.shape.num_expanded + len(tree.known.inner) for _, tree in trees),
        drafting=len(drafting),
        depth=max((shape.depth for _, shape in drafting), default=0),
        behind=2 * len(drafting),
        draft_context=sum(item.length for item, _ in drafting),
    )
