"""Structured answers in the running engine: with trees and without, in company, interrupted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from resispec.engine.engine import Engine
from resispec.engine.request import Request, RequestError, SamplingParams, SpeculationParams, StructuredSpec

Make = Callable[..., Engine]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["null", "true", "trull"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
    },
    "required": ["name", "kind", "ages"],
    "additionalProperties": False,
}
JSON = StructuredSpec("json_schema", json.dumps(SCHEMA))
PROMPT = (1, 2, 3)


def request(
    name: str, spec: StructuredSpec | None, verifier: str | None = "resispec", **sampling: Any
) -> Request:
    params = SamplingParams(**{"max_tokens": 120, "temperature": 1.0, "structured": spec, **sampling})
    return Request(name, PROMPT, params, SpeculationParams(verifier is not None, verifier))


def check(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("verifier", ["resispec", "resispec-tree", "without-replacement", "block", "target"])
def test_answers_follow_the_schema(
    tiny: Any, grammar_engine: Make, characters: Tokenizer, verifier: str
) -> None:
    """With every verifier, beside free requests, and greedy as without trees."""
    engine = grammar_engine(characters)
    requests = [request(f"s{seed}", JSON, verifier, seed=seed) for seed in range(6)]
    requests += [request("free", None, verifier, seed=1), request("greedy", JSON, verifier, temperature=0)]
    ran = tiny.run(engine, [*requests, request("plain", JSON, None, temperature=0)])
    assert ran.text["greedy"] == ran.text["plain"]
    for name, text in ran.text.items():
        if name != "free":
            assert ran.last[name].finish_reason == "stop"
            check(text)
    assert len({ran.text[f"s{seed}"] for seed in range(6)}) > 3
    assert ran.last["s0"].metrics.speculation.num_draft_tokens > 0


def test_company_and_preemption_change_nothing(
    tiny: Any, grammar_engine: Make, characters: Tokenizer
) -> None:
    spec = StructuredSpec("regex", "([a-z]{3}[0-9]){20,24}")
    requests = [request(f"s{seed}", spec, seed=seed, max_tokens=100) for seed in range(6)]
    engine = grammar_engine(characters)
    alone = {r.request_id: tiny.run(engine, [r]).text[r.request_id] for r in requests}
    rows = 220 * engine.info.kv_bytes_per_row
    ran = tiny.run(grammar_engine(characters, kv_memory=rows, max_model_len=120), requests)
    assert ran.text == alone
    assert any(last.metrics.num_preemptions for last in ran.last.values())


def test_an_answer_that_is_cut_says_so(tiny: Any, grammar_engine: Make, characters: Tokenizer) -> None:
    full = tiny.run(grammar_engine(characters), [request("a", JSON, temperature=0)])
    count = len(full.tokens["a"])
    for limit, reason in ((count - 1, "length"), (count, "stop"), (count + 1, "stop")):
        ran = tiny.run(grammar_engine(characters), [request("a", JSON, temperature=0, max_tokens=limit)])
        assert ran.last["a"].finish_reason == reason
        assert full.text["a"].startswith(ran.text["a"])


def test_a_stop_string_ends_it_early(tiny: Any, grammar_engine: Make, characters: Tokenizer) -> None:
    ran = tiny.run(grammar_engine(characters), [request("a", JSON, seed=3, stop=('", "ages',))])
    assert ran.last["a"].stop_reason == '", "ages'
    assert re.fullmatch(r'\{"name": ".*", "kind": "\w+', ran.text["a"])


def test_the_end_is_allowed_where_the_grammar_may_end(
    tiny: Any, grammar_engine: Make, letters: Tokenizer
) -> None:
    spec = StructuredSpec("regex", "(ab|c)*")
    requests = [request(str(seed), spec, seed=seed, max_tokens=40) for seed in range(30)]
    ran = tiny.run(grammar_engine(letters), requests)
    for name, text in ran.text.items():
        stopped = ran.last[name].finish_reason == "stop"
        assert re.fullmatch("(ab|c)*" if stopped else "(ab|c)*a?", text)
    assert {last.finish_reason for last in ran.last.values()} >= {"stop"}


def test_aborted_while_it_is_compiled_or_followed(
    tiny: Any, grammar_engine: Make, characters: Tokenizer
) -> None:
    engine = grammar_engine(characters)
    engine.add(request("early", JSON))
    engine.abort("early")
    engine.add(request("late", JSON))
    while not any(output.request_id == "late" for output in engine.step().outputs):
        engine.check_integrity()
    engine.abort("late")
    assert [output.finish_reason for output in engine.step().outputs] == ["abort"]
    check(tiny.run(engine, [request("after", JSON, seed=1)]).text["after"])


def test_a_bad_grammar_fails_alone(tiny: Any, grammar_engine: Make, characters: Tokenizer) -> None:
    bad = StructuredSpec("json_schema", '{"properties": {"a": {"type": "strang"}}}')
    ran = tiny.run(grammar_engine(characters), [request("bad", bad), request("good", JSON, seed=1)])
    assert ran.last["bad"].finish_reason == "error"
    assert "properties.a" in ran.last["bad"].error
    check(ran.text["good"])


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"min_tokens": 3}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"bad_words": ((1, 2),)}, "bad_words"),
        ({"allowed_token_ids": (1,)}, "allowed_token_ids"),
    ],
)
def test_rules_that_may_leave_nothing_are_refused(
    grammar_engine: Make, characters: Tokenizer, extra: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        grammar_engine(characters).add(request("a", JSON, **extra))
    assert caught.value.param == param


def test_other_rules_work_beside_a_grammar(tiny: Any, grammar_engine: Make, characters: Tokenizer) -> None:
    base = request("a", JSON, seed=2)
    sampling = replace(
        base.sampling, top_k=3, top_p=0.7, min_p=0.1, repetition_penalty=1.3, logit_bias=((9, 50.0),)
    )
    check(tiny.run(grammar_engine(characters), [replace(base, sampling=sampling)]).text["a"])
