"""What the engine refuses, whoever asks: the server checks more, and earlier."""

from __future__ import annotations

from .outputs import EngineInfo
from .request import Request, RequestError, SamplingParams, SpeculationParams
from .tree import DRAFT
from .verifiers.fit import takes_known
from .verifiers.table import VERIFIERS, get

MAX_LOGPROBS = 20  # alternatives at a position
MAX_BAD_WORDS = 1024  # token sequences
MAX_BAD_WORD = 1024  # tokens of one


def check_request(request: Request, info: EngineInfo) -> None:
    """Raises RequestError naming the field."""
    prompt, speculation = request.prompt_token_ids, request.speculation
    if not prompt:
        raise RequestError("the prompt is empty; at least one token is needed", "prompt")
    if len(prompt) >= info.max_model_len:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, but the context of {info.max_model_len} tokens must hold "
            "the prompt and at least one more",
            "prompt",
        )
    for token in prompt:
        if not 0 <= token < info.vocab_size:
            raise RequestError(f"token id {token} is outside the vocabulary of {info.vocab_size}", "prompt")
    _check_sampling(request.sampling, info)
    if speculation.verifier is not None:
        get(speculation.verifier)
        if (why := info.refused_verifiers.get(speculation.verifier)) is not None:
            raise RequestError(why, "speculation.verifier")
    _check_proposers(request, info)
    _at_least_one(speculation.max_nodes, "speculation.tree.max_nodes")
    _at_least_one(speculation.max_depth, "speculation.tree.max_depth")


def limit_notes(wanted: SpeculationParams, info: EngineInfo) -> tuple[str, ...]:
    """What of a request's tree was cut to this server's limits: a sentence each."""
    limits = (
        ("tree.max_nodes", wanted.max_nodes, info.max_tree_nodes),
        ("tree.max_depth", wanted.max_depth, info.max_tree_depth),
    )
    return tuple(
        f"{name}: {asked} was asked for, {most} is this server's limit"
        for name, asked, most in limits
        if asked is not None and asked > most
    )


def _check_proposers(request: Request, info: EngineInfo) -> None:
    speculation = request.speculation
    for name in speculation.proposers or ():
        if name not in info.proposers:
            have = ", ".join(info.proposers) or "none"
            raise RequestError(
                f"proposer {name!r} is not one of this server's: {have}", "speculation.proposer"
            )
    verifier = VERIFIERS[speculation.verifier or info.verifier]
    sources = [name for name in speculation.proposers or () if name != DRAFT]
    if sources and not takes_known(verifier):
        raise RequestError(
            f"verifier {verifier.name!r} has no rule for candidates that are known beforehand, which is all "
            f"that {', '.join(sources)} can offer; these have: {', '.join(_taking_known())}",
            "speculation.proposer",
        )
    if not request.prediction_token_ids:
        return
    if "prediction" not in (speculation.proposers or info.proposers) or not speculation.enabled:
        raise RequestError(
            "a prediction is given, but 'prediction' is not among the proposers in use", "prediction"
        )
    if not takes_known(verifier):
        raise RequestError(
            f"verifier {verifier.name!r} cannot use a prediction; these can: {', '.join(_taking_known())}",
            "prediction",
        )
    for token in request.prediction_token_ids:
        if not 0 <= token < info.vocab_size:
            raise RequestError(
                f"token id {token} is outside the vocabulary of {info.vocab_size}", "prediction"
            )


def _taking_known() -> list[str]:
    return sorted(name for name, verifier in VERIFIERS.items() if verifier.exact and takes_known(verifier))


def _check_sampling(sampling: SamplingParams, info: EngineInfo) -> None:
    for token, bias in sampling.logit_bias:
        if not 0 <= token < info.vocab_size:
            raise RequestError(
                f"token id {token} is outside the vocabulary of {info.vocab_size}", "logit_bias"
            )
        _in_range(bias, -100.0, 100.0, "logit_bias", "from -100 to 100")
    for name, tokens in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):
        for token in tokens:
            if not 0 <= token < info.vocab_size:
                raise RequestError(f"token id {token} is outside the vocabulary of {info.vocab_size}", name)
    _in_range(sampling.temperature, 0.0, float("inf"), "temperature", "0 or more")
    _in_range(sampling.top_p, 5e-324, 1.0, "top_p", "above 0 and at most 1")
    _in_range(sampling.min_p, 0.0, 1.0, "min_p", "from 0 to 1")
    # Further out, logits are not float32 numbers any more.
    _in_range(sampling.repetition_penalty, 1e-6, 1e6, "repetition_penalty", "from 1e-06 to 1e+06")
    _in_range(sampling.presence_penalty, -2.0, 2.0, "presence_penalty", "from -2 to 2")
    _in_range(sampling.frequency_penalty, -2.0, 2.0, "frequency_penalty", "from -2 to 2")
    if not all(sampling.stop):
        raise RequestError("a stop string is empty; it would end every answer at once", "stop")
    _check_bad_words(sampling, info)
    _check_allowed(sampling, info)
    # Scoring a prompt needs no answer.
    least = 1 if sampling.prompt_logprobs is None else 0
    if sampling.max_tokens is not None and sampling.max_tokens < least:
        raise RequestError(f"max_tokens is {sampling.max_tokens}; it must be {least} or more", "max_tokens")
    most = min(MAX_LOGPROBS, info.vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, name)
        if value is not None:
            _in_range(value, 0, most, name, f"from 0 to {most}")


def _check_bad_words(sampling: SamplingParams, info: EngineInfo) -> None:
    words = sampling.bad_words
    if not all(words):
        raise RequestError("a bad word is empty; it would forbid everything", "bad_words")
    if len(words) > MAX_BAD_WORDS or max(map(len, words), default=0) > MAX_BAD_WORD:
        raise RequestError(f"at most {MAX_BAD_WORDS} sequences of up to {MAX_BAD_WORD} tokens", "bad_words")
    for token in (token for word in words for token in word):
        if not 0 <= token < info.vocab_size:
            raise RequestError(
                f"token id {token} is outside the vocabulary of {info.vocab_size}", "bad_words"
            )
    never = {word[0] for word in words if len(word) == 1}
    if sampling.min_tokens > 0:
        never |= {*info.eos_token_ids, *sampling.stop_token_ids}
    if words and len(never) >= info.vocab_size:
        raise RequestError("they leave no token to begin with", "bad_words")


def _check_allowed(sampling: SamplingParams, info: EngineInfo) -> None:
    """Refuse what may leave no token to choose."""
    if sampling.structured is not None:
        _check_structured(sampling)
    if sampling.allowed_token_ids == ():
        raise RequestError("allowed_token_ids is empty; list at least one token", "allowed_token_ids")
    if sampling.allowed_token_ids is not None and sampling.bad_words:
        raise RequestError("not together with allowed_token_ids: they may leave no token", "bad_words")
    stops = {*info.eos_token_ids, *sampling.stop_token_ids}
    allowed = sampling.allowed_token_ids
    if sampling.min_tokens > 0 and (
        stops.issuperset(allowed) if allowed is not None else len(stops) >= info.vocab_size
    ):
        raise RequestError("every token is a stop, so min_tokens can never be reached", "min_tokens")


def _check_structured(sampling: SamplingParams) -> None:
    """A grammar alone says what comes next and where the answer ends; two such rules may leave nothing."""
    for name, used in (
        ("allowed_token_ids", sampling.allowed_token_ids is not None),
        ("min_tokens", sampling.min_tokens > 0),
        ("ignore_eos", sampling.ignore_eos),
        ("bad_words", bool(sampling.bad_words)),
    ):
        if used:
            raise RequestError(f"{name} cannot be used in a structured answer; leave it out", name)


def _in_range(value: float, low: float, high: float, name: str, wanted: str) -> None:
    if not low <= value <= high:  # NaN is in no range
        raise RequestError(f"{name} is {value}; it must be {wanted}", name)


def _at_least_one(value: int | None, name: str) -> None:
    if value is not None and value < 1:
        raise RequestError(f"{name} is {value}; it must be 1 or more", name)
