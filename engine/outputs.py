"""What the engine gives back: plain values, one batch of them per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from resispec.models.compiled.state import NOT_COMPILED, CompileStatus

from .request import SpeculationMode
from .trace import StepTrace


class FinishReason(StrEnum):
    STOP = "stop"  # EOS, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the end of the context
    ABORT = "abort"  # by the client, or the engine is going down
    ERROR = "error"  # this request failed; others go on


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Candidates of one source: the draft, or a source of known tokens."""

    source: str
    num_proposed: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """What was drafted and kept for one request. Tokens after a stop are in no figure."""

    verifier: str
    exact: bool
    mode: SpeculationMode = SpeculationMode.FIXED
    notes: tuple[str, ...] = ()  # what of the request's tree was cut to the server's limits
    num_spec_steps: int = 0  # steps whose tree held at least one candidate
    num_draft_tokens: int = 0  # candidates verified by the target, over all trees
    num_spec_tokens: int = 0  # most candidates one path could have kept, over all steps
    num_accepted_draft_tokens: int = 0
    num_forced_tokens: int = 0  # that the answer's form forced: taken without a candidate
    acceptance_histogram: tuple[int, ...] = ()  # [a]: steps that kept a candidates
    accepted_by_depth: tuple[int, ...] = ()  # [d]: candidates kept at depth d + 1
    proposed_by_depth: tuple[int, ...] = ()  # [d]: steps that had candidates at depth d + 1
    accepted_by_child: tuple[int, ...] = ()  # [c]: kept candidates that were child c of their node
    by_source: tuple[SourceCounts, ...] = ()  # one that several proposed counts for the first of them
    draft_ms: float = 0.0  # this request's even share of the time of each step it was in
    verify_ms: float = 0.0
    overhead_ms: float = 0.0
    decode_ms: float = 0.0  # first token to last
    plain_ms: float = 0.0  # that plain decoding would have taken for it, at the same batch sizes
    num_decoded_tokens: int = 0  # in that time
    num_measured_tokens: int = 0  # of them, those whose plain time comes from plain steps of that batch size

    @property
    def speedup(self) -> float | None:
        """Plain decoding's time over the real one; None where nothing was decoded."""
        return self.plain_ms / self.decode_ms if self.decode_ms > 0 and self.plain_ms > 0 else None

    @property
    def baseline_ms_per_token(self) -> float | None:
        """What a token of plain decoding would have taken."""
        return self.plain_ms / self.num_decoded_tokens if self.num_decoded_tokens else None

    @property
    def baseline_measured(self) -> float:
        """Share of the tokens whose baseline was measured; the others' was predicted. In [0, 1]."""
        return self.num_measured_tokens / max(1, self.num_decoded_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per speculative step, the correction or bonus token included."""
        return 1.0 + self.num_accepted_draft_tokens / max(1, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Kept candidates over the most that paths could have kept, in [0, 1]."""
        return self.num_accepted_draft_tokens / max(1, self.num_spec_tokens)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of one request, in milliseconds, and its speculation figures."""

    queue_time_ms: float
    prefill_time_ms: float  # first scheduled to first token
    time_to_first_token_ms: float  # arrival to first token
    generation_time_ms: float  # first token to last token
    e2e_ms: float
    mean_itl_ms: float
    tokens_per_second: float
    num_preemptions: int
    speculation: SpeculationMetrics | None = None  # None: not asked for, or no proposer


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    prompt_tokens: int
    completion_tokens: int  # delivered tokens only; an EOS that ended the answer counts
    cached_tokens: int = 0  # prompt tokens whose KV came from the prefix cache


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token under the target's raw law: the softmax of its logits, before anything a request asks for.

    Natural logarithms. The alternatives are the law's likeliest tokens, whether or not this one is
    among them.
    """

    token_id: int
    logprob: float
    rank: int  # 1 + tokens that are likelier
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News of one request: the text and tokens since the last one.

    ``text`` may lag behind ``token_ids``: it is held back while it may still turn out to be a stop
    string or an incomplete character. The concatenation over all outputs is the whole answer.
    ``text_ends`` says how much of the answer each token completes: ``text`` up to there is that of the
    tokens up to it. An end may lie beyond what has been released so far, and beyond an answer that a
    stop string cut later.
    ``usage`` covers everything so far; ``metrics`` is set once, with ``finish_reason``.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or string; None for EOS
    metrics: RequestMetrics | None = None
    error: str | None = None  # with FinishReason.ERROR
    trace: tuple[StepTrace, ...] = ()  # of the steps behind ``token_ids``, where it was asked for
    text_ends: tuple[int, ...] = ()  # for each of `token_ids`: characters of the answer decoded with it
    logprobs: tuple[TokenLogprobs, ...] = ()  # for each of `token_ids`, if asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # if asked for, with the first output: all but token 0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """One verifier's share of one step, over all requests that used it."""

    verifier: str
    exact: bool
    num_drafts: int  # requests that had a tree
    num_draft_tokens: int
    accepted: tuple[int, ...]  # candidates kept, one entry per draft
    tree_nodes: tuple[int, ...]  # candidates verified, one entry per draft
    accepted_by_depth: tuple[int, ...]
    proposed_by_depth: tuple[int, ...]
    accepted_by_child: tuple[int, ...]
    by_source: tuple[SourceCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedStats:
    """One request that ended in this step."""

    finish_reason: FinishReason
    usage: Usage
    metrics: RequestMetrics


class StepStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything the metrics need to know of one step. Times in seconds."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage_target: float = 0.0  # in [0, 1]: rows held by live requests over all rows
    kv_usage_draft: float = 0.0
    prompt_tokens: int = 0  # computed by the target in this step
    generation_tokens: int = 0  # delivered in this step
    iteration_tokens: int = 0  # rows of the target's forward
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    num_preemptions: int = 0
    time_to_first_token: tuple[float, ...] = ()
    inter_token_latency: tuple[float, ...] = ()  # time since the last delivery over tokens delivered
    finished: tuple[FinishedStats, ...] = ()
    speculation: tuple[SpeculationStats, ...] = ()
    speculation_off: tuple[tuple[str, int], ...] = ()  # (reason, requests stepped without a tree)
    residual_underflow: int = 0
    # schedule, draft, verify, sample, commit, detokenise; from an engine in a process of its own also send:
    # handing the step before to the server
    phase_seconds: tuple[tuple[str, float], ...] = ()
    grammar_seconds: float = 0.0  # within these phases: masks, and the steps of grammars
    compilation: CompileStatus | None = None  # where it has changed with this step


class StepResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    outputs: tuple[RequestOutput, ...]
    stats: StepStats


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is being served; sent once, when the engine is ready."""

    target: str  # as the user named it
    draft: str | None
    target_path: str  # local folder with the tokenizer and the configuration
    device: str
    dtype: str
    quantization: str  # of the target's weights: none, int8, int4
    max_model_len: int
    max_num_seqs: int
    vocab_size: int  # token ids below this exist in the tokenizer
    eos_token_ids: tuple[int, ...]
    verifier: str
    verifiers: tuple[str, ...]  # names a request may choose
    proposers: tuple[str, ...]  # names a request may choose from; all are used otherwise
    max_tree_nodes: int
    max_tree_depth: int
    kv_rows: int  # tokens that fit into the KV memory
    kv_bytes_per_row: int  # both models
    draft_quantization: str | None = None  # of the draft's weights: none, int8; None: there is no draft
    generation_defaults: dict[str, float] = field(default_factory=dict)  # temperature, top_p, ..: model's own
    speculation: SpeculationMode = SpeculationMode.AUTO  # of requests that do not say
    refused_verifiers: dict[str, str] = field(default_factory=dict)  # known ones, and why not
    inexact_verifiers: tuple[str, ...] = ()  # of ``verifiers``, those that do not keep the target's law
    attention: str = "segments"  # how the KV memory is read
    notes: tuple[str, ...] = ()  # handled oddities a person should know, one sentence each
    compilation: CompileStatus = NOT_COMPILED  # of the target's layers; changes while it is served

    @property
    def number_format(self) -> str:
        """What the target computes with, in words."""
        return number_format(self.quantization, self.dtype)


def number_format(quantization: str, dtype: str, draft_quantization: str | None = None) -> str:
    """In words: ``bfloat16``, or ``int8 weights, bfloat16, the draft's weights int8``.

    draft_quantization: None: there is no draft, or nothing is to be said of it.
    """
    target = dtype if quantization == "none" else f"{quantization} weights, {dtype}"
    return (
        target
        if draft_quantization in (None, "none")
        else f"{target}, the draft's weights {draft_quantization}"
    )
