"""From a validated body to the engine's requests: defaults filled in, limits checked."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence

from resispec.engine.outputs import EngineInfo
from resispec.engine.request import (
    Request,
    SamplingParams,
    SpeculationMode,
    SpeculationParams,
    StructuredSpec,
)

from .errors import ApiError, invalid
from .schemas.common import Body, GenerationBody, SpeculationOptions
from .schemas.validators import unknown_fields


def refuse_unknown(body: Body, *, ignore: bool) -> None:
    """Refuse the first field that no schema declares, unless told to ``ignore`` it. Raises ApiError 400."""
    if not ignore and (unknown := sorted(unknown_fields(body))):
        raise invalid(unknown[0], "unknown field", "unknown_parameter")


def check_fields(body: GenerationBody, *, ignore_unknown: bool) -> None:
    """Refuse unknown fields, and fields that do not go together. Raises ApiError 400."""
    refuse_unknown(body, ignore=ignore_unknown)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "only together with stream: true")
    if body.stream_interval is not None and not body.stream:
        raise invalid("stream_interval", "only together with stream: true")


def engine_requests(
    body: GenerationBody,
    info: EngineInfo,
    prompts: Sequence[tuple[int, ...]],
    *,
    prompt_field: str,
    default_max_tokens: int | None,
    bad_words: tuple[tuple[int, ...], ...],
    structured: StructuredSpec | None = None,
    prediction: tuple[int, ...] = (),
) -> list[Request]:
    """One request per choice: ``n`` for each prompt, in order.

    default_max_tokens: the answer's limit when the body has none; None: the rest of the context.
    bad_words: the body's, as tokens. structured: what the answers must look like. prediction: what they
    are expected to be. Raises ApiError 400.
    """
    requests: list[Request] = []
    # Not the client's id: clients may use one twice.
    unique = uuid.uuid4().hex
    speculation = speculation_params(body.speculation, info)
    for whole in prompts:
        prompt = _truncated(whole, body, info, default_max_tokens)
        limit = _answer_limit(body, info, len(prompt), prompt_field, default_max_tokens)
        for copy in range(body.sequences_per_prompt):
            requests.append(
                Request(
                    request_id=f"{unique}-{len(requests)}",
                    prompt_token_ids=prompt,
                    sampling=sampling_params(body, info, limit, copy, bad_words, structured),
                    speculation=speculation,
                    priority=body.priority or 0,
                    cache_salt=_cache_salt(body),
                    prediction_token_ids=prediction,
                )
            )
    return requests


def sampling_params(
    body: GenerationBody,
    info: EngineInfo,
    max_tokens: int,
    copy: int,
    bad_words: tuple[tuple[int, ...], ...],
    structured: StructuredSpec | None = None,
) -> SamplingParams:
    """The body's parameters, else the model's own defaults, else the neutral ones."""

    def chosen(value: float | None, name: str, neutral: float) -> float:
        return info.generation_defaults.get(name, neutral) if value is None else value

    if body.min_tokens and body.min_tokens > max_tokens:
        raise invalid("min_tokens", f"{body.min_tokens} is more than the answer's limit of {max_tokens}")
    return SamplingParams(
        temperature=chosen(body.temperature, "temperature", 1.0),
        top_p=chosen(body.top_p, "top_p", 1.0),
        top_k=min(max(0, int(chosen(body.top_k, "top_k", 0))), info.vocab_size),
        min_p=chosen(body.min_p, "min_p", 0.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=chosen(body.repetition_penalty, "repetition_penalty", 1.0),
        logit_bias=_logit_bias(body.logit_bias or {}, info.vocab_size),
        seed=_seed(body.seed, copy),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=body.stop,
        stop_token_ids=_token_ids(body.stop_token_ids or [], "stop_token_ids", info.vocab_size),
        allowed_token_ids=_token_ids(body.allowed_token_ids, "allowed_token_ids", info.vocab_size)
        if body.allowed_token_ids is not None
        else None,
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=body.skip_special_tokens is not False,
        logprobs=body.answer_logprobs,
        prompt_logprobs=body.scored_prompt,
        bad_words=bad_words,
        structured=structured,
    )


def speculation_params(options: SpeculationOptions | None, info: EngineInfo) -> SpeculationParams:
    """The body's ``speculation``, refused where this server cannot do it.

    A tree larger than the server's limits is no error: the engine cuts it, and the answer says so.
    """
    if options is None:
        return SpeculationParams()
    mode = _speculation_mode(options, info)
    if mode is not SpeculationMode.OFF and not info.proposers:
        raise invalid("speculation", "this server runs without any proposer; only enabled: false works")
    for name in options.proposer:
        if name not in info.proposers:
            raise invalid("speculation.proposer", f"{name!r} is not one of: {', '.join(info.proposers)}")
    if options.verifier is not None and (why := info.refused_verifiers.get(options.verifier)):
        raise invalid("speculation.verifier", why)
    if options.verifier is not None and options.verifier not in info.verifiers:
        known = ", ".join(info.verifiers)
        raise invalid("speculation.verifier", f"{options.verifier!r} is not one of: {known}")
    return SpeculationParams(
        enabled=mode is not SpeculationMode.OFF,
        mode=mode,
        verifier=options.verifier,
        max_nodes=options.tree.max_nodes if options.tree else None,
        max_depth=options.tree.max_depth if options.tree else None,
        trace=bool(options.trace),
        proposers=options.proposer or None,
    )


def _speculation_mode(options: SpeculationOptions, info: EngineInfo) -> SpeculationMode:
    """``enabled: false`` is the mode ``off``; ``enabled: true`` is any other, by default the server's."""
    if options.enabled is None:
        return SpeculationMode(options.mode or info.speculation)
    if options.mode is not None and options.enabled is (options.mode == "off"):
        raise invalid(
            "speculation.mode", f"{options.mode!r} contradicts enabled: {options.enabled!s}".lower()
        )
    if not options.enabled:
        return SpeculationMode.OFF
    chosen = SpeculationMode(options.mode or info.speculation)
    return SpeculationMode.AUTO if chosen is SpeculationMode.OFF else chosen


def _truncated(
    prompt: tuple[int, ...], body: GenerationBody, info: EngineInfo, default_max_tokens: int | None
) -> tuple[int, ...]:
    """The last ``truncate_prompt_tokens`` of a prompt; -1: as many as the context holds with the answer."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompt
    if keep == 0:
        raise invalid("truncate_prompt_tokens", "leaves nothing; 1 or more are kept, or with -1 what fits")
    if keep < 0:
        limit = body.token_limit()[1]
        answer = default_max_tokens if limit is None else limit
        keep = max(1, info.max_model_len - max(1, answer or 1))
    return prompt[-keep:]


def _answer_limit(
    body: GenerationBody, info: EngineInfo, prompt: int, prompt_field: str, default: int | None
) -> int:
    room = info.max_model_len - prompt
    if room < 1:
        raise _too_long(
            prompt_field,
            f"{prompt} tokens, but the context holds {info.max_model_len}, one of them for the answer",
        )
    name, limit = body.token_limit()
    if limit == 0 and body.scored_prompt is None:
        raise invalid(name, "0 is only to score a prompt: with echo and logprobs, or with prompt_logprobs")
    if limit is None:
        return room if default is None else min(default, room)
    if limit > room:
        raise _too_long(
            name,
            f"{limit} tokens after a prompt of {prompt} exceed the context of {info.max_model_len}; "
            f"at most {room} fit",
        )
    return limit


def _too_long(field: str, message: str) -> ApiError:
    return invalid(field, message, "context_length_exceeded")


def _token_ids(values: Sequence[int], field: str, vocab_size: int) -> tuple[int, ...]:
    for value in values:
        if not 0 <= value < vocab_size:
            raise invalid(field, f"token id {value} is not in [0, {vocab_size})")
    return tuple(values)


def _logit_bias(bias: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    # Keys are strings in JSON; ASCII digits only, and short enough to be read as a number.
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise invalid("logit_bias", f"{key[:40]!r} is not a token id")
    token_ids = _token_ids([int(key) for key in bias], "logit_bias", vocab_size)
    return tuple(zip(token_ids, bias.values(), strict=True))


def _seed(seed: int | None, copy: int) -> int | None:
    """The first of ``n`` sequences keeps the seed, in [0, 2^64); the others' are derived from it."""
    if seed is None:
        return None
    seed %= 1 << 64
    if copy == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{copy}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _cache_salt(body: GenerationBody) -> str:
    """One salt out of both fields, such that no two different pairs share one."""
    if body.cache_salt is None and body.prompt_cache_key is None:
        return ""
    return json.dumps([body.cache_salt, body.prompt_cache_key])
