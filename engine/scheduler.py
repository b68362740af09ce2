"""What the next step does: a pure plan made from the sequences and the KV rows.

Decoding sequences go first, then running prefills, then new ones, each in order of (priority,
arrival). A sequence that finds no rows takes them from the last in that order, which is preempted:
it keeps its tokens and is prefilled again later.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import count

import msgspec

from .budget.base import Choice, Off, TreeBudget, View
from .budget.controller import Controller
from .budget.ladder import kind_of, shape_of
from .cost.prefill import PrefillCosts, StepLoad
from .known_tree import NOTHING_KNOWN, KnownTree
from .kv.extents import Move
from .kv.memory_manager import KVManager
from .request import SpeculationMode, SpeculationParams
from .sequence import Sequence
from .tree import NOTHING_DRAFTED, CandidateTree, TreeShape
from .verifiers.fit import takes_known
from .verifiers.table import VERIFIERS

_SCORED_ROWS = 256  # of a prompt whose log-probabilities are wanted, in one step: each costs a row of logits
_WORTH_WAITING = 32  # tokens of a prompt that another request is computing; fewer are computed again
_MAX_FORCED = 32  # tokens that a grammar runs ahead by
_HEADROOM = 128  # rows taken beyond the prompt at admission, so that a growing answer seldom moves


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_seconds: float  # for prompts, in a step in which others decode
    max_model_len: int
    largest_tree: TreeBudget
    fixed_tree: TreeBudget  # of a request in the fixed mode that asks for nothing else
    draft_positions: int  # 0: there is no draft
    sources: bool = False  # there are sources of known candidates
    draft_reads_target: bool = False  # it drafts only behind tokens that the target has run

    @property
    def speculates(self) -> bool:
        return self.sources or self.draft_positions > 0

    @property
    def max_forced_tokens(self) -> int:
        """Tokens that a grammar may run ahead by: with as many for everybody a step is still not too long."""
        share = self.max_num_batched_tokens // self.max_num_seqs
        return max(0, min(_MAX_FORCED, share - 1 - self.largest_tree.max_nodes))


class PlannedSequence(msgspec.Struct, frozen=True, eq=False):
    sequence: Sequence
    num_tokens: int  # committed tokens to run: a chunk while prefilling; while decoding the last one, and
    # before it those that were forced
    tree: CandidateTree | None  # candidates behind the last token
    catch_up: int = 0  # without drafted candidates: tokens that the draft runs of those it has missed

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last token, so that a next one can be drawn."""
        return self.num_tokens == self.sequence.remaining

    @property
    def decodes(self) -> bool:
        """Whether this is one of the steps after the prompt's, until it is committed."""
        return self.sequence.is_decoding

    @property
    def length(self) -> int:
        """Tokens of the sequence that this step attends to, candidates left out."""
        return self.sequence.target_rows + self.num_tokens

    @property
    def num_nodes(self) -> int:
        return self.tree.num_nodes if self.tree else 0

    @property
    def shape(self) -> TreeShape | None:
        """What the draft is to grow; None: it does not run."""
        return self.tree.shape if self.tree and self.tree.shape.levels else None


@dataclass(frozen=True, slots=True)
class StepPlan:
    moves: tuple[Move, ...]  # row copies, in order, before anything else
    items: tuple[PlannedSequence, ...]
    num_preempted: int
    cache_queries: int
    cache_hits: int
    speculation_off: tuple[tuple[str, int], ...]
    choosing_seconds: float  # of what went into the choice of trees: nothing of it where all are plain


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    now: float  # seconds
    budget: int  # tokens
    prefill_seconds: float | None = None  # left for prompts; None: nobody decodes, who would wait for them
    moves: list[Move] = field(default_factory=list)
    items: list[PlannedSequence] = field(default_factory=list)
    preempted: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    off: dict[str, int] = field(default_factory=dict)  # reasons, and requests without a tree for each
    choosing_seconds: float = 0.0

    @property
    def takes_prompts(self) -> bool:
        return self.budget > 0 and (self.prefill_seconds is None or self.prefill_seconds > 0)

    @property
    def load(self) -> StepLoad:
        rows = sum(item.num_tokens + item.num_nodes for item in self.items)
        return StepLoad(rows, sum(item.length + item.num_nodes for item in self.items))


class Scheduler:
    """Holds who waits and who runs. Rows are the manager's; tokens are the sequences'."""

    def __init__(
        self, config: SchedulerConfig, kv: KVManager, controller: Controller, prefill: PrefillCosts
    ) -> None:
        self.config = config
        self.kv = kv
        self._controller = controller
        self._prefill = prefill
        self.running: list[Sequence] = []
        self._waiting: list[tuple[tuple[int, float], int, Sequence]] = []
        self._tick = count()
        self._plain = Choice(None, Off.REQUEST if config.speculates else None)  # of requests without trees

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[Sequence]:
        return [sequence for _, _, sequence in self._waiting]

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.order, next(self._tick), sequence))

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Forget a sequence that ended, wherever it was. With ``keep`` its rows become a cached prefix."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._waiting = [item for item in self._waiting if item[2] is not sequence]
            heapq.heapify(self._waiting)
        self._release(sequence, keep=keep)

    def schedule(self, now: float) -> StepPlan:
        """now: seconds, by the clock of requests' ``arrival_time``."""
        draft = _Draft(now, budget=self.config.max_num_batched_tokens)
        self.running.sort(key=lambda sequence: sequence.order)
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self.running:
            (decoding if sequence.is_decoding else prefilling).append(sequence)
        draft.prefill_seconds = self._prefill_seconds(len(decoding), len(prefilling))
        prompts = self._likely_rows(decoding, prefilling, draft)
        self._plan_decoding(decoding, prompts, draft)
        for sequence in prefilling:
            self._plan_prefill(sequence, draft)
        self._admit_waiting(draft)
        return StepPlan(
            tuple(draft.moves),
            tuple(draft.items),
            draft.preempted,
            draft.cache_queries,
            draft.cache_hits,
            tuple(draft.off.items()),
            draft.choosing_seconds,
        )

    def _plan_decoding(self, decoding: SequenceOf[Sequence], prompts: int, draft: _Draft) -> None:
        """Plan all that decode. prompts: rows of prompts that are likely to share the step."""
        if all(sequence.mode is SpeculationMode.OFF for sequence in decoding):  # nothing is to be chosen
            for sequence in decoding:
                self._plan_decode(sequence, None, self._plain, draft)
            return
        began = time.perf_counter()
        views = [self._view(sequence, len(decoding)) for sequence in decoding]
        choices = self._controller.plan(views, prompts)
        draft.choosing_seconds = time.perf_counter() - began
        for sequence, view, choice in zip(decoding, views, choices, strict=True):
            self._plan_decode(sequence, _tree(view, choice), choice, draft)

    def _plan_decode(
        self, sequence: Sequence, tree: CandidateTree | None, choice: Choice, draft: _Draft
    ) -> None:
        if sequence.entry is None:  # preempted by an earlier one
            return
        off, catch_up = choice.off, choice.catch_up
        length = len(sequence.token_ids)
        rows = length + (tree.num_nodes if tree else 0)
        # A request with a seed gets the same trees whatever else is running, so it never goes without.
        may_drop = tree is not None and sequence.is_free
        if may_drop and not self._ensure(sequence, rows, draft, preempt=False):
            tree, off, catch_up, rows = None, Off.KV_MEMORY, 0, length
        if not self._ensure(sequence, rows, draft, preempt=True):
            return
        if off is not None and tree is None:
            draft.off[off] = draft.off.get(off, 0) + 1
        item = PlannedSequence(sequence, sequence.remaining, tree, catch_up)
        draft.items.append(item)
        draft.budget -= item.num_tokens + item.num_nodes

    def _plan_prefill(self, sequence: Sequence, draft: _Draft) -> None:
        if sequence.entry is None or not draft.takes_prompts:
            return
        # After a preemption the last token waits for its own step, with its tree.
        left = sequence.remaining - (1 if sequence.num_output else 0)
        chunk = min(left, draft.budget)
        if sequence.reusable_rows is not None:
            chunk = min(chunk, _SCORED_ROWS)
        load = draft.load
        if draft.prefill_seconds is not None:
            chunk = self._prefill.fitting(chunk, sequence.target_rows, load, draft.prefill_seconds)
            draft.prefill_seconds -= self._prefill.chunk_seconds(chunk, sequence.target_rows, load)
        if not self._ensure(sequence, sequence.target_rows + chunk, draft, preempt=True):
            return
        item = PlannedSequence(sequence, chunk, None, self._prompt_catch_up(sequence, chunk))
        draft.items.append(item)
        draft.budget -= chunk

    def _prefill_seconds(self, num_decoding: int, num_prefilling: int) -> float | None:
        """Time for prompts in a step: the more of them wait for each that decodes, the longer it may wait.

        Less by the usual error of what is expected of them, for the limit is meant for what they take.
        """
        if not num_decoding:
            return None
        waiting = min(len(self._waiting), self.config.max_num_seqs - num_decoding - num_prefilling)
        seconds = self.config.max_prefill_seconds * max(1.0, (num_prefilling + waiting) / num_decoding)
        return seconds / (1.0 + self._prefill.usual_error)

    def _likely_rows(
        self, decoding: SequenceOf[Sequence], prefilling: SequenceOf[Sequence], draft: _Draft
    ) -> int:
        """Rows of prompts that are likely to share the step, guessed before its trees are chosen."""
        rows = min(draft.budget, sum(sequence.remaining for sequence in prefilling))
        if draft.prefill_seconds is None or not rows:
            return rows
        load = StepLoad(len(decoding), sum(len(sequence.token_ids) for sequence in decoding))
        return self._prefill.fitting(rows, prefilling[0].target_rows, load, draft.prefill_seconds)

    def _prompt_catch_up(self, sequence: Sequence, chunk: int) -> int:
        """Prompt tokens that the draft runs beside a chunk: all that the target has run, or none."""
        if chunk == sequence.remaining or len(sequence.token_ids) > self.config.draft_positions:
            return 0
        batch = min(len(self.running) + len(self._waiting), self.config.max_num_seqs)
        if not sequence.drafts or not self._controller.keeps_up(
            sequence.mode, batch, is_free=sequence.is_free
        ):
            return 0
        return sequence.target_rows - sequence.draft_rows

    def _admit_waiting(self, draft: _Draft) -> None:
        """Admit in order; but who has the prompt of one that is being computed waits, to copy its rows."""
        if not self._waiting:
            return
        later = []
        computed = {sequence.prompt_key for sequence in self.running if _computes_prompt(sequence)}
        while self._waiting and len(self.running) < self.config.max_num_seqs and draft.takes_prompts:
            sequence = self._waiting[0][2]
            if sequence.prompt_key in computed and self._is_worth_waiting(sequence):
                later.append(heapq.heappop(self._waiting))
            elif draft.preempted or not self._admit(sequence, draft):
                break
            elif _computes_prompt(sequence):
                computed.add(sequence.prompt_key)
        for item in later:
            heapq.heappush(self._waiting, item)

    def _is_worth_waiting(self, sequence: Sequence) -> bool:
        return (
            self.kv.cache.enabled
            and sequence.num_output == 0
            and sequence.num_prompt > _WORTH_WAITING
            and sequence.reusable_rows is None
        )

    def _admit(self, sequence: Sequence, draft: _Draft) -> bool:
        length = len(sequence.token_ids)
        nodes = self.config.largest_tree.max_nodes if self.config.speculates else 0
        most = length + nodes + min(_HEADROOM, self._tokens_left(sequence))
        salt, reusable = sequence.request.cache_salt, sequence.reusable_rows
        admission = self.kv.admit(sequence.token_ids, salt, most, reusable) or self.kv.admit(
            sequence.token_ids, salt, length + nodes, reusable
        )
        if admission is None:
            return False
        heapq.heappop(self._waiting)
        draft.moves += admission.moves
        if admission.copy is not None:
            draft.moves.append(admission.copy)
        sequence.entry = admission.entry
        sequence.target_rows = admission.entry.target_rows
        sequence.draft_rows = admission.entry.draft_rows
        if sequence.scheduled_time is None:
            sequence.cached_tokens = min(admission.cached_tokens, sequence.num_prompt)
            draft.cache_queries += sequence.num_prompt if reusable is None else 0
            draft.cache_hits += sequence.cached_tokens
        sequence.mark_scheduled(draft.now)
        self.running.append(sequence)
        if sequence.is_decoding:
            view = self._view(sequence, 1 + sum(item.samples for item in draft.items))
            choice = self._controller.late(view)
            self._plan_decode(sequence, _tree(view, choice), choice, draft)
        else:
            self._plan_prefill(sequence, draft)
        return True

    def _ensure(self, sequence: Sequence, rows: int, draft: _Draft, *, preempt: bool) -> bool:
        """Get rows for a sequence, from others if need be; False if it was itself preempted."""
        assert sequence.entry is not None
        while True:
            ok, moves = self.kv.ensure(sequence.entry, rows)
            draft.moves += moves
            if ok or not preempt:
                return ok
            victim = max(self.running, key=lambda other: other.order)
            self._preempt(victim, draft)
            if victim is sequence:
                return False

    def _preempt(self, sequence: Sequence, draft: _Draft) -> None:
        self.running.remove(sequence)
        draft.items = [item for item in draft.items if item.sequence is not sequence]
        self._release(sequence, keep=True)
        sequence.num_preemptions += 1
        draft.preempted += 1
        self.add(sequence)

    def _release(self, sequence: Sequence, *, keep: bool) -> None:
        if sequence.entry is not None:
            self.kv.release(sequence.entry, keep=keep)
        sequence.entry = None
        sequence.target_rows = sequence.draft_rows = 0

    def _tokens_left(self, sequence: Sequence) -> int:
        """Tokens the sequence may still get, by ``max_tokens`` and by the context."""
        left = self.config.max_model_len - len(sequence.token_ids)
        limit = sequence.request.sampling.max_tokens
        return left if limit is None else min(left, limit - sequence.num_output)

    def _view(self, sequence: Sequence, batch: int) -> View:
        """One of ``batch`` decoding sequences as the controller sees it, with the most its tree may hold."""
        length = len(sequence.token_ids)
        verifier = VERIFIERS[sequence.verifier]
        # A drafted node at depth d is run by the draft at position len - 1 + d only to be expanded.
        room = self.config.draft_positions - length
        drafts = sequence.drafts and self.config.draft_positions > 0
        if self.config.draft_reads_target and sequence.num_forced:
            drafts = False  # also where the forced tokens have been run since: a seed's tree may not tell
        off = None
        if self.config.speculates and sequence.mode is SpeculationMode.OFF:
            off = Off.REQUEST
        elif drafts and room < 0:
            off = Off.DRAFT_CONTEXT
        left = self._tokens_left(sequence) - 1
        limits = sequence.limits
        known = self._known(sequence, min(limits.max_nodes, left), limits.max_nodes, batch)
        return View(
            history=sequence.history,
            mode=sequence.mode,
            is_free=sequence.is_free,
            max_nodes=limits.max_nodes if drafts else 0,
            max_depth=max(0, min(limits.max_depth, left, room + 1)),
            off=off,
            length=length,
            behind=length - sequence.draft_rows,
            drawing=verifier.drawing,
            shares_nodes=verifier.shares_nodes,
            known=known,
            forced=sequence.remaining - 1,
            falls_behind=sequence.runs_ahead,
        )

    def tree_limits(self, mode: SpeculationMode, wanted: SpeculationParams) -> TreeBudget:
        """The most that a request's tree may hold, by what it and the configuration say."""
        config = self.config
        usual = config.fixed_tree if mode is SpeculationMode.FIXED else config.largest_tree
        return TreeBudget(
            min(config.largest_tree.max_nodes, wanted.max_nodes or usual.max_nodes),
            min(config.largest_tree.max_depth, wanted.max_depth or usual.max_depth),
        )

    def _known(self, sequence: Sequence, max_depth: int, max_nodes: int, batch: int) -> KnownTree:
        """What the sources say, as far as it is worth its place in the target's forward."""
        if not sequence.sources or max_depth < 1 or not takes_known(VERIFIERS[sequence.verifier]):
            return NOTHING_KNOWN
        length = len(sequence.token_ids)
        drafts = sequence.drafts and length <= self.config.draft_positions
        limit = self._controller.known_limit(
            sequence.mode, batch, length, is_free=sequence.is_free, drafts=drafts
        )
        if limit.max_nodes is not None:
            max_nodes = min(max_nodes, limit.max_nodes)
        return sequence.sources.known_tree(sequence.token_ids, max_nodes, max_depth, limit.least_chance)


def _tree(view: View, choice: Choice) -> CandidateTree | None:
    known = view.known if choice.known else NOTHING_KNOWN
    drafted = shape_of(kind_of(view), choice.budget) if choice.budget else NOTHING_DRAFTED
    return CandidateTree(drafted, known) if known.num_nodes or drafted.num_nodes else None


def _computes_prompt(sequence: Sequence) -> bool:
    """More than the last token, which everyone runs for itself."""
    return sequence.num_output == 0 and sequence.remaining > 1
