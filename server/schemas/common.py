"""The parameters that completions and chat share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from .validators import NO_EFFECT, check_bad_words, check_logit_bias, check_proposers, check_stop, only

INT64 = 1 << 63
MAX_SEQUENCES = 128
MAX_LOGPROBS = 20  # alternatives at a position
MAX_TOKEN_IDS = 4096  # in a list that is no prompt

StopStrings = Annotated[
    tuple[str, ...],
    PlainValidator(
        check_stop,
        json_schema_input_type=Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)]
        | None,
    ),
]

BadWords = Annotated[
    tuple[str, ...], PlainValidator(check_bad_words, json_schema_input_type=list[str] | None)
]

LogitBias = Annotated[
    dict[str, float] | None,
    PlainValidator(
        check_logit_bias,
        json_schema_input_type=dict[
            Annotated[str, Field(pattern="^[0-9]{1,11}$")], Annotated[float, Field(ge=-100, le=100)]
        ]
        | None,
    ),
]


Proposers = Annotated[
    tuple[str, ...], PlainValidator(check_proposers, json_schema_input_type=str | list[str] | None)
]


class Body(BaseModel):
    """Part of a request. Unknown fields are kept, so that the route can refuse them by name."""

    # Strict: "0.5" is no number, true is no integer. NaN and infinities are no JSON.
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TreeOptions(Body):
    max_nodes: Annotated[int | None, Field(ge=1)] = None
    max_depth: Annotated[int | None, Field(ge=1)] = None


class SpeculationOptions(Body):
    enabled: bool | None = None
    mode: Literal["auto", "fixed", "off"] | None = None
    verifier: str | None = None
    tree: TreeOptions | None = None
    proposer: Proposers = ()
    trace: bool | None = None  # keep every step, for /v1/requests/{id}/speculation


class GenerationBody(Body):
    """A request for generated text. ``None`` is the same as absent, for every field."""

    model: str | None = None

    temperature: Annotated[float | None, Field(ge=0)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=INT64)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0)] = None
    logit_bias: LogitBias = None
    seed: Annotated[int | None, Field(ge=-INT64, lt=INT64)] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_SEQUENCES)] = None

    stop: StopStrings = ()
    stop_token_ids: Annotated[list[int] | None, Field(fail_fast=True, max_length=MAX_TOKEN_IDS)] = None
    allowed_token_ids: Annotated[
        list[int] | None, Field(min_length=1, fail_fast=True, max_length=MAX_TOKEN_IDS)
    ] = None
    include_stop_str_in_output: bool | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    ignore_eos: bool | None = None
    bad_words: BadWords = ()
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, lt=INT64)] = None
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int | None, Field(ge=1, lt=INT64)] = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] = None
    priority: Annotated[int | None, Field(ge=-INT64, lt=INT64)] = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=1024)] = None
    prompt_cache_key: Annotated[str | None, Field(min_length=1, max_length=1024)] = None
    speculation: SpeculationOptions | None = None

    # Without effect here; clients send them.
    user: Annotated[str | None, Field(description=NO_EFFECT)] = None
    metadata: Annotated[dict[str, Any] | None, Field(description=NO_EFFECT)] = None
    safety_identifier: Annotated[str | None, Field(description=NO_EFFECT)] = None
    store: Annotated[Any, only(False)] = None
    service_tier: Annotated[Any, only("auto", "default")] = None

    # Known, not honoured.
    prediction: Annotated[Any, only()] = None

    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer's tokens, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def answer_logprobs(self) -> int | None:
        """Alternatives wanted beside each token of the answer; None: no log-probabilities."""
        return None

    @property
    def scored_prompt(self) -> int | None:
        """Alternatives wanted beside each token of the prompt; None: no log-probabilities."""
        return self.prompt_logprobs

    @property
    def sequences_per_prompt(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)
