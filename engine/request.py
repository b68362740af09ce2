"""What a caller asks of the engine: plain, frozen values with the field's standard names."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

StructuredKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class StructuredSpec:
    """What the whole answer must look like."""

    kind: StructuredKind
    value: str = ""  # a JSON schema, a regex, a JSON list of strings, or a grammar in Lark or GBNF


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a request ends.

    The target's law at a position is made in this order: penalties, ``logit_bias``, the
    ``min_tokens`` mask, ``bad_words``, ``allowed_token_ids`` or ``structured``, temperature, ``top_k``,
    ``top_p``, ``min_p``.
    """

    temperature: float = 1.0  # 0: greedy, the lowest id on ties
    top_p: float = 1.0  # in (0, 1]; 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # in [0, 1]; 0: off
    presence_penalty: float = 0.0  # in [-2, 2], over output tokens
    frequency_penalty: float = 0.0  # in [-2, 2], over output tokens
    repetition_penalty: float = 1.0  # > 0, over prompt and output tokens
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias in [-100, 100])
    seed: int | None = None  # None: an independent stream of its own
    max_tokens: int | None = None  # None: up to the end of the context; 0: only with prompt_logprobs
    min_tokens: int = 0  # no EOS and no stop id before this many output tokens
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None  # None: all; EOS is as allowed as it is listed
    structured: StructuredSpec | None = None  # EOS is allowed where the answer may end
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that the output may not have in it
    logprobs: int | None = None  # alternatives beside each output token's own; None: no log-probabilities
    prompt_logprobs: int | None = None  # the same for the prompt's tokens


class SpeculationMode(StrEnum):
    """How much is drafted."""

    AUTO = "auto"  # as much as pays, none included
    FIXED = "fixed"  # always the same trees; without a seed, smaller ones under load
    OFF = "off"


class FormHelp(StrEnum):
    """What an answer's form gives beside its masks."""

    FORCED = "forced"  # tokens that it forces are taken at once
    GRAMMAR = "grammar"  # few open tokens, and what each forces, are candidates
    PROMPT = "prompt"  # values that the prompt has for a slot are candidates


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Per-request speculation. ``None`` means the server's own setting."""

    enabled: bool = True  # False: whatever the mode, none
    verifier: str | None = None
    max_nodes: int | None = None  # candidates in a tree, the root not counted
    max_depth: int | None = None  # drafted levels
    trace: bool = False  # give a `StepTrace` of every step
    mode: SpeculationMode | None = None
    proposers: tuple[str, ...] | None = None  # who says what may follow; see `EngineInfo.proposers`
    form: frozenset[FormHelp] = frozenset(FormHelp)  # what a structured answer's form is used for


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. Sent between processes, so every field pickles."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    priority: int = 0  # lower is served earlier; first come first served within a priority
    cache_salt: str = ""  # prompts share cached prefixes only under the same salt, sources what they learn
    owner: str = ""  # whose it is: sources share what they learn among requests of one owner only
    prediction_token_ids: tuple[int, ...] = ()  # what the answer is expected to be; speeds up what is right
    arrival_time: float = field(default_factory=time.monotonic)  # seconds, CLOCK_MONOTONIC


class RequestError(ValueError):
    """A request that cannot be served. ``param`` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
