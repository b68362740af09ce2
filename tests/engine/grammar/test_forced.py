"""Tokens that a grammar forces are taken at once, and what may end an answer ends it there, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from resispec.engine.engine import Engine
from resispec.engine.outputs import RequestOutput
from resispec.engine.request import Request, SamplingParams, SpeculationParams, StructuredSpec
from resispec.engine.trace import StepTrace

Make = Callable[..., Engine]

WORDS = [f"{first}-thisismorethanawood-{last}." for first in ("xyz", "wvu") for last in ("aq", "br", "cs")]
SPEC = StructuredSpec("choice", json.dumps(WORDS))
PLAIN = SpeculationParams(enabled=False)


def request(name: str, speculation: SpeculationParams | None = None, **sampling: Any) -> Request:
    params = SamplingParams(**{"structured": SPEC, "max_tokens": 90, **sampling})
    return Request(name, (1, 2), params, speculation or SpeculationParams())


@pytest.fixture
def engine(grammar_engine: Make, characters: Tokenizer) -> Engine:
    return grammar_engine(characters, max_tree_nodes=4)


def test_a_step_takes_a_forced_run_however_long(tiny: Any, engine: Engine) -> None:
    ran = tiny.run(engine, [request("a", seed=3), request("plain", PLAIN, seed=3)])
    assert ran.text["a"] in WORDS
    metrics = ran.last["a"].metrics.speculation
    # The first letter comes with the prompt; what is open then is the first of the last two letters.
    assert metrics.num_forced_tokens == len(ran.tokens["a"]) - 2
    assert metrics.num_spec_steps <= 1
    assert ran.last["plain"].metrics.speculation is None
    assert ran.last["a"].usage.completion_tokens == len(ran.text["a"])


@pytest.mark.parametrize("limit", range(1, 29))
def test_a_limit_in_the_middle(tiny: Any, engine: Engine, limit: int) -> None:
    """Of tokens, whether it falls on a drawn or on a forced one."""
    whole = tiny.run(engine, [request("a", temperature=0)])
    ran = tiny.run(engine, [request("a", temperature=0, max_tokens=limit)])
    assert ran.tokens["a"] == whole.tokens["a"][:limit]
    assert ran.text["a"] == whole.text["a"][:limit]
    assert ran.last["a"].finish_reason == ("length" if limit < len(whole.tokens["a"]) else "stop")


def test_a_stop_in_the_middle(tiny: Any, engine: Engine, characters: Tokenizer) -> None:
    """A string over several forced tokens, and a token that is forced."""
    ran = tiny.run(engine, [request("a", stop=("morethan",))])
    assert ran.text["a"][3:] == "-thisis"
    assert ran.last["a"].stop_reason == "morethan"
    minus = characters.token_to_id("-")
    ran = tiny.run(engine, [request("a", stop_token_ids=(minus,))])
    assert len(ran.tokens["a"]) == 4
    assert ran.tokens["a"][-1] == minus
    assert len(ran.text["a"]) == 3
    assert (ran.last["a"].finish_reason, ran.last["a"].stop_reason) == ("stop", minus)


def test_the_context_ends_in_the_middle(tiny: Any, grammar_engine: Make, characters: Tokenizer) -> None:
    ran = tiny.run(grammar_engine(characters, max_model_len=12), [request("a", temperature=0)])
    assert len(ran.tokens["a"]) == 10
    assert ran.last["a"].finish_reason == "length"


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("verifier", ["resispec", "resispec-tree", "block", "target"])
def test_greedy_text_is_that_of_plain_decoding(
    tiny: Any, grammar_engine: Make, characters: Tokenizer, verifier: str, drafted: bool
) -> None:
    """In company of free requests, and where longer runs than may be taken at once follow each other."""
    proposers = ("draft", "ngram") if drafted else ("ngram",)
    engine = grammar_engine(characters, drafted=drafted, proposers=proposers)
    long = StructuredSpec("regex", "(ab(cd){30}[x-z]){3}")
    asked = SpeculationParams(verifier=verifier)
    requests = [
        Request(f"{name}{spec.kind}", (1, 2), SamplingParams(0, structured=spec, max_tokens=200), speculation)
        for spec in (SPEC, long)
        for name, speculation in (("tree-", asked), ("plain-", PLAIN))
    ]
    free = [Request(f"free{i}", (3, i), SamplingParams(max_tokens=60, seed=i)) for i in range(3)]
    ran = tiny.run(engine, [*requests, *free])
    for kind in ("choice", "regex"):
        assert ran.text[f"tree-{kind}"] == ran.text[f"plain-{kind}"]
        assert ran.last[f"tree-{kind}"].finish_reason == "stop"
    assert ran.last["tree-regex"].metrics.speculation.num_forced_tokens > 150


def test_log_probabilities_are_those_of_all_tokens(tiny: Any, engine: Engine) -> None:
    without = tiny.run(engine, [request("a", temperature=0)])
    engine.add(request("a", temperature=0, logprobs=1))
    outputs: list[RequestOutput] = []
    while engine.has_work:
        outputs += engine.step().outputs
    assert [token for output in outputs for token in output.token_ids] == without.tokens["a"]
    assert [score.token_id for output in outputs for score in output.logprobs] == without.tokens["a"]


def test_traces_name_what_was_forced(tiny: Any, engine: Engine) -> None:
    asked = replace(request("a", seed=3), speculation=SpeculationParams(trace=True))
    traces: list[StepTrace] = []
    texts: list[str] = []
    engine.add(asked)
    while engine.has_work:
        for output in engine.step().outputs:
            traces += output.trace
            texts.append(output.text)
    tokens = [token for trace in traces for token in trace.tokens]
    assert "".join(token.text for token in tokens) == "".join(texts)
    forced = [token for token in tokens if token.origin == "forced"]
    assert len(forced) == len(tokens) - 2
    assert {(token.p, token.drawn) for token in forced} == {(1.0, None)}


def test_a_small_step_leaves_no_room_to_run_ahead(
    tiny: Any, grammar_engine: Make, characters: Tokenizer
) -> None:
    """Forced tokens are candidates then, as many as the tree holds."""
    engine = grammar_engine(
        characters, max_tree_nodes=4, max_num_seqs=2, max_num_batched_tokens=10, baseline_probe_share=0.0
    )
    ran = tiny.run(engine, [request("a")])
    assert ran.text["a"] in WORDS
    metrics = ran.last["a"].metrics.speculation
    assert metrics.num_forced_tokens == 0
    assert metrics.num_accepted_draft_tokens > 0.6 * len(ran.tokens["a"])
