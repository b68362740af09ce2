"""The engine's own, changing record of one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .outputs import SourceCounts, SpeculationMetrics, TokenLogprobs
from .request import Request, SpeculationMode
from .sources.request_sources import RequestSources
from .tree import CandidateTree

if TYPE_CHECKING:
    from .budget.base import TreeBudget
    from .budget.history import History
    from .budget.meter import PlainStep
    from .detokenizer import IncrementalDetokenizer
    from .grammar.base import Constraint
    from .kv.prefix_cache import CacheEntry
    from .text_decoder import TextDecoder


@dataclass(slots=True)
class SpeculationTally:
    """Counts behind `SpeculationMetrics`. Only delivered tokens are ever added."""

    num_steps: int = 0
    num_draft_tokens: int = 0
    num_spec_tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    proposed_by_depth: list[int] = field(default_factory=list)
    accepted_by_child: list[int] = field(default_factory=list)
    proposed_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_source: Counter[str] = field(default_factory=Counter)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    plain_seconds: float = 0.0  # that plain decoding would have taken for the tokens after the first
    num_decoded: int = 0  # these tokens
    num_forced: int = 0  # tokens that a grammar forced
    num_measured: int = 0  # those whose plain time comes from plain steps of the same batch size

    def decoded(self, step: PlainStep, count: int) -> None:
        """``count`` tokens came out of a step; prompts in it would have held plain decoding up once, too."""
        self.plain_seconds += count * step.seconds + step.prompt_seconds
        self.num_decoded += count
        self.num_measured += count if step.is_measured else 0

    def add(self, tree: CandidateTree, path: SequenceOf[int], children: SequenceOf[int]) -> None:
        """One step with a tree, of which the slots of ``path`` were kept, these children of their parents."""
        self.num_steps += 1
        self.num_draft_tokens += tree.num_nodes
        self.num_spec_tokens += tree.depth
        _bump(self.histogram, len(path))
        for level in range(tree.depth):
            _bump(self.proposed_by_depth, level)
        for level, child in enumerate(children):
            _bump(self.accepted_by_depth, level)
            _bump(self.accepted_by_child, child)
        self.proposed_by_source.update(tree.proposed_by_source)
        self.accepted_by_source.update(map(tree.source_of, path))

    def metrics(
        self,
        verifier: str,
        exact: bool,
        mode: SpeculationMode,
        notes: tuple[str, ...],
        decode_seconds: float,
    ) -> SpeculationMetrics:
        return SpeculationMetrics(
            verifier=verifier,
            exact=exact,
            mode=mode,
            notes=notes,
            num_spec_steps=self.num_steps,
            num_draft_tokens=self.num_draft_tokens,
            num_spec_tokens=self.num_spec_tokens,
            num_accepted_draft_tokens=sum(self.accepted_by_depth),
            acceptance_histogram=tuple(self.histogram),
            accepted_by_depth=tuple(self.accepted_by_depth),
            proposed_by_depth=tuple(self.proposed_by_depth),
            accepted_by_child=tuple(self.accepted_by_child),
            by_source=source_counts(self.proposed_by_source, self.accepted_by_source),
            draft_ms=self.draft_seconds * 1e3,
            verify_ms=self.verify_seconds * 1e3,
            overhead_ms=self.overhead_seconds * 1e3,
            decode_ms=decode_seconds * 1e3,
            plain_ms=self.plain_seconds * 1e3,
            num_decoded_tokens=self.num_decoded,
            num_measured_tokens=self.num_measured,
            num_forced_tokens=self.num_forced,
        )


def source_counts(proposed: Counter[str], accepted: Counter[str]) -> tuple[SourceCounts, ...]:
    return tuple(SourceCounts(source, count, accepted[source]) for source, count in proposed.items())


def _bump(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way.

    ``token_ids`` holds prompt and output. The target has run the first ``target_rows`` of them, the
    draft the first ``draft_rows``; the rest, at least the last one, is still to be run. A preempted
    sequence loses its rows, not its tokens, and is prefilled again with all of them.
    """

    request: Request
    verifier: str
    key: int  # of the uniforms' streams
    detokenizer: IncrementalDetokenizer
    token_ids: list[int]
    mode: SpeculationMode
    notes: tuple[str, ...]  # what of the asked tree was cut to the limits
    history: History
    limits: TreeBudget  # the most that its trees may hold
    drafts: bool = True  # the draft is among its proposers
    sources: RequestSources = field(default_factory=RequestSources)
    entry: CacheEntry | None = None  # its rows; None while waiting
    target_rows: int = 0
    draft_rows: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache when first admitted
    num_preemptions: int = 0
    scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    tally: SpeculationTally = field(default_factory=SpeculationTally)
    trace_decoder: TextDecoder | None = None  # gives each token its text, where a trace was asked for
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of token 1 and on, if asked for
    constraint: Constraint | None = None  # what its tokens are restricted to, after those it has
    runs_ahead: bool = False  # tokens that its grammar forces are taken at once
    num_forced: int = 0  # of its last tokens: forced ones behind the last that was drawn

    num_prompt: int = field(init=False)
    order: tuple[int, float] = field(init=False)  # who is served first: by priority, then by arrival
    # Whether its trees may depend on the load and on times: it has no seed, or trees that are chosen and
    # nothing that is drawn.
    is_free: bool = field(init=False)
    prompt_key: tuple[str, int] = field(init=False)  # equal for equal prompts that may share their rows

    def __post_init__(self) -> None:
        self.num_prompt = len(self.request.prompt_token_ids)
        self.order = (self.request.priority, self.request.arrival_time)
        sampling = self.request.sampling
        chosen = self.mode is SpeculationMode.AUTO and sampling.temperature == 0
        self.is_free = sampling.seed is None or chosen
        self.prompt_key = (self.request.cache_salt, hash(self.request.prompt_token_ids))

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def remaining(self) -> int:
        """Tokens the target has still to run; while decoding 1, and those that were forced."""
        return len(self.token_ids) - self.target_rows

    @property
    def is_decoding(self) -> bool:
        """The next step is one with a tree. The first token comes with the prompt's last chunk, never
        from a tree, and one that was preempted goes on with the tree it would have had.
        """
        return self.num_output > 0 and self.remaining <= 1 + self.num_forced

    def scored_positions(self, count: int) -> range:
        """Which of the next ``count`` tokens to run have logits that score a prompt token."""
        if self.reusable_rows is None:
            return range(0)
        first = max(self.target_rows, self.reusable_rows)
        return range(first, max(first, min(self.target_rows + count, self.num_prompt - 1)))

    @property
    def reusable_rows(self) -> int | None:
        """Cached rows it may start with; None: all there are. A row that was not run scores nothing."""
        if self.request.sampling.prompt_logprobs is None or len(self.prompt_logprobs) >= self.num_prompt - 1:
            return None
        return len(self.prompt_logprobs)

    def mark_scheduled(self, now: float) -> None:
        if self.scheduled_time is None:
            self.scheduled_time = now
