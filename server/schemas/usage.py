"""What a request used and how it went: ``usage`` and ``metrics``."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field

T = TypeVar("T")
Absent = Annotated[T | None, Field(exclude_if=lambda value: value is None)]
"""A field that is left out, not null, when it has nothing to say."""


class PromptDetails(BaseModel):
    cached_tokens: int


class CompletionDetails(BaseModel):
    """Drafted tokens that the target kept, and those it did not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: Absent[CompletionDetails] = None


class SpeculationBody(BaseModel):
    """Speculation figures of one answer, in vLLM's names where it has one."""

    verifier: str
    exact: bool
    mean_acceptance_length: float  # tokens per speculative step
    draft_acceptance_rate: float
    acceptance_histogram: list[int]  # [a]: steps that kept a candidates
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_spec_tokens: int
    acceptance_by_depth: list[float]  # [d]: share of steps with candidates at depth d + 1 that kept one
    acceptance_by_child: list[float]  # [c]: share of kept candidates that were child c of their node
    draft_ms: float
    verify_ms: float
    overhead_ms: float


class MetricsBody(BaseModel):
    """Times of one answer, in milliseconds. Of several sequences: see `resispec.server.report`."""

    time_to_first_token_ms: float
    queue_time_ms: float
    prefill_time_ms: float
    generation_time_ms: float
    e2e_ms: float
    mean_itl_ms: float
    tokens_per_second: float
    num_preemptions: int
    speculative_decoding: SpeculationBody | None


class Envelope(BaseModel):
    """What every answer and every chunk carries."""

    id: str
    created: int  # seconds since the epoch
    model: str
    system_fingerprint: str
    metrics: Absent[MetricsBody] = None
