"""What a request used and how it went: ``usage`` and ``metrics``."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field

T = TypeVar("T")
Absent = Annotated[T | None, Field(exclude_if=lambda value: value is None)]
"""A field that is left out, not null, when it has nothing to say."""

Figure = Annotated[float, AfterValidator(lambda value: round(value, 4))]
"""A measured number; more digits would be noise."""


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


class SourceBody(BaseModel):
    """Candidates of one proposer. One that several had proposed counts for the first of them."""

    num_draft_tokens: int
    num_accepted_draft_tokens: int


class SpeculationBody(BaseModel):
    """Speculation figures of one answer, in vLLM's names where it has one."""

    verifier: str
    exact: bool
    mode: str  # auto or fixed
    notes: Absent[list[str]] = None  # what of the tree asked for was cut to the server's limits
    mean_acceptance_length: Figure  # tokens per speculative step
    draft_acceptance_rate: Figure
    acceptance_histogram: list[int]  # [a]: steps that kept a candidates
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_spec_tokens: int
    num_forced_tokens: int  # that the answer's form forced: taken without a candidate
    acceptance_by_depth: list[Figure]  # [d]: share of steps with candidates at depth d + 1 that kept one
    acceptance_by_child: list[Figure]  # [c]: share of kept candidates that were child c of their node
    sources: dict[str, SourceBody]  # by proposer
    draft_ms: Figure
    verify_ms: Figure
    overhead_ms: Figure
    speedup: Figure | None  # over plain decoding at the same batch sizes; null: no token after the first
    baseline_ms_per_token: Figure | None  # what a token of plain decoding would have taken
    baseline_measured: Figure  # share of tokens whose baseline comes from real plain steps of that batch size


class MetricsBody(BaseModel):
    """Times of one answer, in milliseconds. Of several sequences: see `resispec.server.report`."""

    time_to_first_token_ms: Figure
    queue_time_ms: Figure
    prefill_time_ms: Figure
    generation_time_ms: Figure
    e2e_ms: Figure
    mean_itl_ms: Figure
    tokens_per_second: Figure
    num_preemptions: int
    speculative_decoding: SpeculationBody | None


class Envelope(BaseModel):
    """What every answer and every chunk carries."""

    id: str
    created: int  # seconds since the epoch
    model: str
    system_fingerprint: str
