"""From the engine's figures to the ``usage`` and ``metrics`` of an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from resispec.engine.outputs import RequestMetrics, SpeculationMetrics, Usage

from .schemas.usage import (
    CompletionDetails,
    MetricsBody,
    PromptDetails,
    SourceBody,
    SpeculationBody,
    UsageBody,
)


def usage_body(
    usages: Sequence[Usage], sequences_per_prompt: int, speculation: Sequence[SpeculationMetrics] = ()
) -> UsageBody:
    """The sum over all choices; a prompt that has several answers counts once."""
    prompts = usages[::sequences_per_prompt]
    prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    accepted = sum(part.num_accepted_draft_tokens for part in speculation)
    drafted = sum(part.num_draft_tokens for part in speculation)
    return UsageBody(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(usage.cached_tokens for usage in prompts)),
        completion_tokens_details=CompletionDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
        )
        if speculation
        else None,
    )


def metrics_body(metrics: Sequence[RequestMetrics], completion_tokens: int) -> MetricsBody | None:
    """Figures of an answer; None when no sequence has any.

    Of several sequences: the first token's and the queue's times are the earliest one's, the other
    times the slowest one's, ``mean_itl_ms`` the mean over sequences, and ``tokens_per_second`` all
    tokens over the time from the first token to the last.
    """
    if not metrics:
        return None
    if len(metrics) == 1:
        tokens_per_second = metrics[0].tokens_per_second
    else:
        first = min(part.time_to_first_token_ms for part in metrics)
        last = max(part.e2e_ms for part in metrics)
        tokens_per_second = 1000.0 * completion_tokens / (last - first) if last > first else 0.0
    parts = [part.speculation for part in metrics if part.speculation is not None]
    return MetricsBody(
        time_to_first_token_ms=min(part.time_to_first_token_ms for part in metrics),
        queue_time_ms=min(part.queue_time_ms for part in metrics),
        prefill_time_ms=max(part.prefill_time_ms for part in metrics),
        generation_time_ms=max(part.generation_time_ms for part in metrics),
        e2e_ms=max(part.e2e_ms for part in metrics),
        mean_itl_ms=sum(part.mean_itl_ms for part in metrics) / len(metrics),
        tokens_per_second=tokens_per_second,
        num_preemptions=sum(part.num_preemptions for part in metrics),
        speculative_decoding=_speculation_body(parts) if parts else None,
    )


def _speculation_body(parts: Sequence[SpeculationMetrics]) -> SpeculationBody:
    """All of one answer's sequences share a verifier, so their counts add up."""
    total = SpeculationMetrics(
        verifier=parts[0].verifier,
        exact=parts[0].exact,
        mode=parts[0].mode,
        notes=parts[0].notes,
        num_spec_steps=sum(part.num_spec_steps for part in parts),
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        num_spec_tokens=sum(part.num_spec_tokens for part in parts),
        num_accepted_draft_tokens=sum(part.num_accepted_draft_tokens for part in parts),
        num_forced_tokens=sum(part.num_forced_tokens for part in parts),
        acceptance_histogram=_add([part.acceptance_histogram for part in parts]),
        accepted_by_depth=_add([part.accepted_by_depth for part in parts]),
        proposed_by_depth=_add([part.proposed_by_depth for part in parts]),
        accepted_by_child=_add([part.accepted_by_child for part in parts]),
        draft_ms=sum(part.draft_ms for part in parts),
        verify_ms=sum(part.verify_ms for part in parts),
        overhead_ms=sum(part.overhead_ms for part in parts),
        decode_ms=sum(part.decode_ms for part in parts),
        plain_ms=sum(part.plain_ms for part in parts),
        num_decoded_tokens=sum(part.num_decoded_tokens for part in parts),
        num_measured_tokens=sum(part.num_measured_tokens for part in parts),
    )
    kept = max(1, sum(total.accepted_by_child))
    return SpeculationBody(
        verifier=total.verifier,
        exact=total.exact,
        mode=total.mode.value,
        notes=list(total.notes) or None,
        mean_acceptance_length=total.mean_acceptance_length,
        draft_acceptance_rate=total.draft_acceptance_rate,
        acceptance_histogram=list(total.acceptance_histogram),
        num_spec_steps=total.num_spec_steps,
        num_draft_tokens=total.num_draft_tokens,
        num_accepted_draft_tokens=total.num_accepted_draft_tokens,
        num_spec_tokens=total.num_spec_tokens,
        num_forced_tokens=total.num_forced_tokens,
        acceptance_by_depth=[
            accepted / max(1, proposed)
            for accepted, proposed in zip_longest(
                total.accepted_by_depth, total.proposed_by_depth, fillvalue=0
            )
        ],
        sources=_sources(parts),
        acceptance_by_child=[count / kept for count in total.accepted_by_child],
        draft_ms=total.draft_ms,
        verify_ms=total.verify_ms,
        overhead_ms=total.overhead_ms,
        speedup=total.speedup,
        baseline_ms_per_token=total.baseline_ms_per_token,
        baseline_measured=total.baseline_measured,
    )


def _sources(parts: Sequence[SpeculationMetrics]) -> dict[str, SourceBody]:
    proposed: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for counts in (counts for part in parts for counts in part.by_source):
        proposed[counts.source] += counts.num_proposed
        accepted[counts.source] += counts.num_accepted
    return {
        name: SourceBody(num_draft_tokens=count, num_accepted_draft_tokens=accepted[name])
        for name, count in proposed.items()
    }


def _add(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*counts, fillvalue=0))
