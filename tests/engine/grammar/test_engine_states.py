"""Any order of requests, steps, aborts and preemptions: answers stay valid, and nothing is left over.

The engine has so few KV rows that requests push each other out. Every request with a seed or at temperature
0 must say what it says alone.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable

import jsonschema
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tokenizers import Tokenizer

from resispec.engine.engine import Engine
from resispec.engine.outputs import FinishReason, RequestOutput
from resispec.engine.request import Request, SamplingParams, SpeculationParams, StructuredSpec

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "kind": {"enum": ["null", "true", "trull"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
    },
    "required": ["name", "kind", "ages"],
    "additionalProperties": False,
}
CHOICES = ["call me", "call them all", "c"]
REGEX = "(ab{3}c[d-f]|xyzxyz[0-9]){2,4}"
FORMS = {
    "schema": StructuredSpec("json_schema", json.dumps(SCHEMA)),
    "choice": StructuredSpec("choice", json.dumps(CHOICES)),
    "regex": StructuredSpec("regex", REGEX),
    "free": None,
}
STOPS = ('"', "ll", "bbb")


def check(form: str, text: str) -> None:
    if form == "schema":
        jsonschema.validate(json.loads(text), SCHEMA)
    elif form == "choice":
        assert text in CHOICES
    elif form == "regex":
        assert re.fullmatch(REGEX, text)


class Serving(RuleBasedStateMachine):
    """An engine among its users."""

    make: Callable[[], Engine]
    quiet: Engine  # for one request at a time
    seen: Counter[str]  # what has happened, over all examples
    alone: dict[tuple[object, ...], str]  # what was said alone, by all that decides it

    @initialize()
    def begin(self) -> None:
        self.engine = self.make()
        self.asked: dict[str, Request] = {}
        self.names = map(str, itertools.count())
        self.forms: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    @rule(
        form=st.sampled_from(sorted(FORMS)),
        prompt=st.sampled_from([(1, 2, 3), tuple(range(40))]),
        temperature=st.sampled_from([0.0, 1.0]),
        seeds=st.lists(st.integers(0, 1), min_size=1, max_size=2, unique=True),
        max_tokens=st.sampled_from([7, 60]),
        stop=st.sampled_from([(), STOPS]),
        speculation=st.sampled_from(
            [
                SpeculationParams(),
                SpeculationParams(enabled=False),
                SpeculationParams(max_nodes=2, trace=True),
            ]
        ),
        logprobs=st.sampled_from([None, 1]),
    )
    def ask(
        self,
        form: str,
        prompt: tuple[int, ...],
        temperature: float,
        seeds: list[int],
        max_tokens: int,
        stop: tuple[str, ...],
        speculation: SpeculationParams,
        logprobs: int | None,
    ) -> None:
        """One or, as ``n`` does, several of a prompt."""
        for seed in seeds:
            sampling = SamplingParams(
                temperature=temperature,
                seed=seed,
                max_tokens=max_tokens,
                stop=stop,
                structured=FORMS[form],
                logprobs=logprobs,
            )
            request = Request(next(self.names), prompt, sampling, speculation)
            self.engine.add(request)
            self.asked[request.request_id], self.forms[request.request_id] = request, form
            self.texts[request.request_id] = ""

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.engine.has_work:
                return
            result = self.engine.step()
            self.seen["preempted"] += result.stats.num_preemptions
            for output in result.outputs:
                self.take(output)

    @rule(place=st.integers(0, 20))
    def abort(self, place: int) -> None:
        if self.asked:
            self.engine.abort(list(self.asked)[place % len(self.asked)])

    @invariant()
    def rows_are_accounted_for(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def take(self, output: RequestOutput) -> None:
        name = output.request_id
        self.texts[name] += output.text
        if output.finish_reason is None:
            return
        request, text = self.asked.pop(name), self.texts[name]
        self.seen[f"{self.forms[name]} {output.finish_reason}"] += 1
        assert output.finish_reason is not FinishReason.ERROR, output.error
        if output.finish_reason is FinishReason.ABORT:
            return
        assert output.usage.completion_tokens <= (request.sampling.max_tokens or 0)
        if output.finish_reason is FinishReason.STOP and output.stop_reason is None:
            check(self.forms[name], text)
        assert text == self.said_alone(request)

    def said_alone(self, request: Request) -> str:
        key = (request.prompt_token_ids, request.sampling, request.speculation)
        if key not in self.alone:
            self.quiet.add(request)
            said = []
            while self.quiet.has_work:
                said += [output.text for output in self.quiet.step().outputs]
            self.alone[key] = "".join(said)
        return self.alone[key]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.step(1)
        assert not self.asked
        self.engine.check_integrity()
        assert self.engine.kv_usage == 0.0


def test_any_order(grammar_engine: Callable[..., Engine], characters: Tokenizer) -> None:
    probe = grammar_engine(characters)
    rows = 200 * probe.info.kv_bytes_per_row

    def make() -> Engine:
        return grammar_engine(characters, kv_memory=rows, max_model_len=140, max_num_seqs=5)

    seen: Counter[str] = Counter()
    machine = type(
        "Serving", (Serving,), {"make": staticmethod(make), "quiet": make(), "alone": {}, "seen": seen}
    )
    run_state_machine_as_test(
        machine, settings=settings(max_examples=8, stateful_step_count=12, deadline=None, derandomize=True)
    )
    assert seen["schema stop"]
    assert seen["regex length"]
