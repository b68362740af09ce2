"""Collects what happened in a step into plain `StepStats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from resispec.models.compiled.state import CompileStatus

from .outputs import FinishedStats, RequestMetrics, SpeculationMetrics, SpeculationStats, StepStats
from .runner.runner import RunResult
from .scheduler import PlannedSequence, StepPlan
from .sequence import Sequence, source_counts
from .tree import CandidateTree


@dataclass(slots=True)
class VerifierTally:
    """One verifier's drafts in one step."""

    exact: bool
    accepted: list[int] = field(default_factory=list)
    tree_nodes: list[int] = field(default_factory=list)
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    proposed_by_depth: Counter[int] = field(default_factory=Counter)
    accepted_by_child: Counter[int] = field(default_factory=Counter)
    proposed_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_source: Counter[str] = field(default_factory=Counter)

    def add(self, tree: CandidateTree, path: SequenceOf[int], children: SequenceOf[int]) -> None:
        """A tree of which the slots of ``path`` were kept, these children of their parents."""
        self.accepted.append(len(path))
        self.tree_nodes.append(tree.num_nodes)
        self.proposed_by_depth.update(range(tree.depth))
        self.accepted_by_depth.update(range(len(path)))
        self.accepted_by_child.update(children)
        self.proposed_by_source.update(tree.proposed_by_source)
        self.accepted_by_source.update(map(tree.source_of, path))

    def stats(self, verifier: str) -> SpeculationStats:
        return SpeculationStats(
            verifier=verifier,
            exact=self.exact,
            num_drafts=len(self.accepted),
            num_draft_tokens=sum(self.tree_nodes),
            accepted=tuple(self.accepted),
            tree_nodes=tuple(self.tree_nodes),
            accepted_by_depth=_dense(self.accepted_by_depth),
            proposed_by_depth=_dense(self.proposed_by_depth),
            accepted_by_child=_dense(self.accepted_by_child),
            by_source=source_counts(self.proposed_by_source, self.accepted_by_source),
        )


def _dense(counts: Counter[int]) -> tuple[int, ...]:
    return tuple(counts[index] for index in range(max(counts, default=-1) + 1))


@dataclass(slots=True)
class StepTally:
    """What one step did, while it is being committed."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    residual_underflow: int = 0
    detokenise_seconds: float = 0.0
    grammar_seconds: float = 0.0
    compilation: CompileStatus | None = None  # of the target's layers, where it has changed
    time_to_first_token: list[float] = field(default_factory=list)
    inter_token_latency: list[float] = field(default_factory=list)
    finished: list[FinishedStats] = field(default_factory=list)
    verifiers: dict[str, VerifierTally] = field(default_factory=dict)

    def delivered(self, sequence: Sequence, count: int, now: float) -> None:
        """``count`` tokens reach the client at ``now`` (seconds, monotonic)."""
        if count == 0:
            return
        self.generation_tokens += count
        if sequence.first_token_time is None:
            sequence.first_token_time = now
            self.time_to_first_token.append(now - sequence.request.arrival_time)
            count -= 1
        last, sequence.last_token_time = sequence.last_token_time, now
        if last is not None:
            self.inter_token_latency += [(now - last) / count] * count

    def drafted(
        self,
        verifier: str,
        exact: bool,
        tree: CandidateTree,
        path: SequenceOf[int],
        children: SequenceOf[int],
    ) -> None:
        self.verifiers.setdefault(verifier, VerifierTally(exact)).add(tree, path, children)

    def stats(
        self,
        plan: StepPlan,
        num_rows: int,
        phases: tuple[tuple[str, float], ...],
        *,
        num_running: int,
        num_waiting: int,
        kv_usage_target: float,
        kv_usage_draft: float,
    ) -> StepStats:
        """num_rows: of the target's forward. The rest is the state that the step leaves."""
        return StepStats(
            num_running=num_running,
            num_waiting=num_waiting,
            kv_usage_target=kv_usage_target,
            kv_usage_draft=kv_usage_draft,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            iteration_tokens=num_rows,
            prefix_cache_queries=plan.cache_queries,
            prefix_cache_hits=plan.cache_hits,
            num_preemptions=plan.num_preempted,
            time_to_first_token=tuple(self.time_to_first_token),
            inter_token_latency=tuple(self.inter_token_latency),
            finished=tuple(self.finished),
            speculation=tuple(part.stats(name) for name, part in self.verifiers.items()),
            speculation_off=plan.speculation_off,
            residual_underflow=self.residual_underflow,
            phase_seconds=phases,
            grammar_seconds=self.grammar_seconds,
            compilation=self.compilation,
        )


def share_time(items: SequenceOf[PlannedSequence], result: RunResult) -> None:
    """An even share of a step's time to each request in it; drafting to those that drafted."""
    drafting = [item for item in items if item.tree is not None]
    for item in drafting:
        item.sequence.tally.draft_seconds += result.draft_seconds / len(drafting)
    for item in items:
        item.sequence.tally.verify_seconds += result.verify_seconds / len(items)
        item.sequence.tally.overhead_seconds += result.sample_seconds / len(items)


def request_metrics(sequence: Sequence, speculation: SpeculationMetrics | None, now: float) -> RequestMetrics:
    """The times of a request that ends at ``now``; a time that never came counts as ``now``."""
    arrival = sequence.request.arrival_time
    scheduled = sequence.scheduled_time or now
    first = sequence.first_token_time or now
    last = sequence.last_token_time or first
    generated = sequence.num_output
    generation = last - first
    return RequestMetrics(
        queue_time_ms=(scheduled - arrival) * 1e3,
        prefill_time_ms=(first - scheduled) * 1e3,
        time_to_first_token_ms=(first - arrival) * 1e3,
        generation_time_ms=generation * 1e3,
        e2e_ms=(now - arrival) * 1e3,
        mean_itl_ms=generation * 1e3 / max(1, generated - 1),
        tokens_per_second=generated / max(now - scheduled, 1e-9),
        num_preemptions=sequence.num_preemptions,
        speculation=speculation,
    )
