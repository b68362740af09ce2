"""Step traces: they tell what happened, and nothing happens differently for being told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.outputs import RequestOutput
from resispec.engine.request import Request, SamplingParams, SpeculationParams
from resispec.engine.trace import BONUS, CORRECTION, HEAD, TAIL, TARGET, StepTrace, TraceCandidate
from resispec.engine.verifiers.table import VERIFIERS

PROMPT = (5, 6, 7)
NAMES = sorted(VERIFIERS)


def draft_model(tiny: Any) -> Any:
    """The target with some noise, so that paths are long and tests fail too."""
    model = tiny.model(0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.fixture(scope="module")
def engine(tiny: Any) -> Any:
    return tiny.engine(tiny.model(0), LoadedDraft(256, model=draft_model(tiny)), allow_inexact=True)


def request(name: str, verifier: str, trace: bool = True, **sampling: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, "seed": 3, **sampling})
    return Request(name, PROMPT, params, SpeculationParams(True, verifier, trace=trace))


def run(engine: Any, *requests: Request) -> dict[str, list[RequestOutput]]:
    for item in requests:
        engine.add(item)
    outputs: dict[str, list[RequestOutput]] = {item.request_id: [] for item in requests}
    while engine.has_work:
        for output in engine.step().outputs:
            outputs[output.request_id].append(output)
    return outputs


def steps(outputs: list[RequestOutput]) -> list[StepTrace]:
    return [step for output in outputs for step in output.trace]


def siblings(step: StepTrace, parent: int) -> list[TraceCandidate]:
    return [candidate for candidate in step.candidates if candidate.parent == parent]


@pytest.mark.parametrize("verifier", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trace_tells_the_answer(engine: Any, verifier: str, temperature: float) -> None:
    outputs = run(engine, request("a", verifier, temperature=temperature))["a"]
    told = steps(outputs)
    tokens = [token for step in told for token in step.tokens]
    assert [token.token_id for token in tokens] == [token for output in outputs for token in output.token_ids]
    assert "".join(token.text for token in tokens) == "".join(output.text for output in outputs)
    assert told[0].candidates == ()
    assert [token.origin for token in told[0].tokens] == [TARGET]
    position = 0
    for step in told:
        assert (step.position, step.verifier) == (position, verifier)
        position += len(step.tokens)
        path = [candidate for candidate in step.candidates if candidate.kept]
        assert [candidate.depth for candidate in path] == list(range(1, len(path) + 1))
        assert [candidate.parent for candidate in path] == [0, *(c.slot for c in path)][: len(path)]
        for candidate, token in zip(path, step.tokens, strict=False):
            assert (token.token_id, token.origin) == (candidate.token_id, candidate.origin)
        if step.candidates and len(step.tokens) == len(path) + 1:
            last = path[-1].slot if path else 0
            assert step.tokens[-1].origin == (CORRECTION if siblings(step, last) else BONUS)
    metrics = outputs[-1].metrics.speculation
    assert sum(len(step.candidates) for step in told) == metrics.num_draft_tokens
    accepted = sum(token.origin in (HEAD, TAIL) for token in tokens)
    assert accepted == metrics.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("verifier", NAMES)
def test_the_numbers_explain_the_outcome(engine: Any, verifier: str) -> None:
    """A test is passed where its uniform says so, and only after the ones before it failed."""
    passed = failed = 0
    for step in steps(run(engine, request("a", verifier, max_tokens=100))["a"]):
        inner = {candidate.parent for candidate in step.candidates}
        for candidate in step.candidates:
            assert 0 <= candidate.accept <= 1
            assert 0 <= candidate.p <= 1
            assert (candidate.q is None) == (candidate.origin == HEAD)
            if not candidate.reached:
                assert not candidate.kept
                continue
            if candidate.uniform is None:
                assert verifier in ("resispec-tree", "block")
                assert candidate.slot in inner
                continue
            before = 0.0
            if candidate.shared:
                # One draw settles these: the shares lie side by side.
                group = siblings(step, candidate.parent)[: candidate.child]
                before = sum(other.accept for other in group if other.shared)
            assert candidate.kept == (before <= candidate.uniform < before + candidate.accept)
            passed, failed = passed + candidate.kept, failed + (not candidate.kept)
    assert passed > 5
    assert failed > 5


def test_probabilities_are_the_targets(tiny: Any, engine: Any) -> None:
    """Against a plain forward of the target over the whole answer."""
    outputs = run(engine, request("a", "resispec", temperature=0.8))["a"]
    tokens = [token for step in steps(outputs) for token in step.tokens]
    ids = [*PROMPT, *(token.token_id for token in tokens)]
    laws = (tiny.model(0)(torch.tensor([ids])).logits[0].double() / 0.8).softmax(dim=-1)
    for place, token in enumerate(tokens):
        assert math.isclose(token.p, float(laws[len(PROMPT) - 1 + place, token.token_id]), rel_tol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_candidates_have_the_drafts_probability(tiny: Any, engine: Any, temperature: float) -> None:
    """Against a plain forward of the draft, for chosen and for drawn ones."""
    told = steps(run(engine, request("a", "resispec", temperature=temperature))["a"])
    ids = [*PROMPT, *(token.token_id for step in told for token in step.tokens)]
    laws = (draft_model(tiny)(torch.tensor([ids])).logits[0].double() / (temperature or 1.0)).softmax(dim=-1)
    seen = set()
    for step in told:
        for candidate in step.candidates:
            assert candidate.draft is not None
            if candidate.depth == 1:
                expected = float(laws[len(PROMPT) - 1 + step.position, candidate.token_id])
                assert math.isclose(candidate.draft, expected, rel_tol=1e-4)
                seen.add(candidate.origin)
    assert seen == ({HEAD} if temperature == 0 else {HEAD, TAIL})


def test_draws_have_the_drafts_probability(engine: Any) -> None:
    """Ordinary speculative sampling: a draw is accepted with probability min(1, p/q)."""
    told = steps(run(engine, request("a", "specinfer"))["a"])
    first = [candidate for step in told for candidate in step.candidates if candidate.child == 0]
    assert len(first) > 10
    for candidate in first:
        assert candidate.q is not None
        assert math.isclose(candidate.accept, min(1.0, candidate.p / candidate.q), rel_tol=1e-9)


def test_thresholds_are_told_where_there_are_some(engine: Any) -> None:
    for verifier in ("resispec", "spectr"):
        told = [c for s in steps(run(engine, request("a", verifier))["a"]) for c in s.candidates]
        assert {c.threshold is None for c in told if c.origin == HEAD} <= {True}
        assert all(c.threshold is not None and c.threshold >= 0 for c in told if c.origin == TAIL)
    told = [c for s in steps(run(engine, request("a", "specinfer"))["a"]) for c in s.candidates]
    assert {c.threshold for c in told} == {None}


def test_a_trace_changes_nothing(engine: Any) -> None:
    mixed = [request(name, name, trace=index % 2 == 0) for index, name in enumerate(NAMES)]
    outputs = run(engine, *mixed)
    for item in mixed:
        traced = item.speculation.trace
        assert all(bool(output.trace) == traced for output in outputs[item.request_id])
        other = replace(item, speculation=replace(item.speculation, trace=not traced))
        alone = run(engine, other)[item.request_id]
        for left, right in zip(outputs[item.request_id], alone, strict=True):
            assert (left.text, left.token_ids) == (right.text, right.token_ids)


def test_a_trace_ends_where_the_answer_ends(engine: Any) -> None:
    """A stop inside a kept path cuts the trace's tokens too."""
    whole = steps(run(engine, request("a", "resispec", temperature=0.0))["a"])
    step = next(step for step in whole if len(step.tokens) > 1)
    stop = step.tokens[0].token_id
    stopped = steps(run(engine, request("a", "resispec", temperature=0.0, stop_token_ids=(stop,)))["a"])
    assert stopped[-1].tokens[-1].token_id == stop
    assert sum(len(s.tokens) for s in stopped) <= step.position + 1


def test_without_a_draft(tiny: Any) -> None:
    plain = Request("a", PROMPT, SamplingParams(max_tokens=5, seed=1), SpeculationParams(trace=True))
    told = steps(run(tiny.engine(tiny.model(0)), plain)["a"])
    assert all(step.candidates == () and step.tokens[0].origin == TARGET for step in told)
    assert all(step.tokens[0].p == pytest.approx(step.tokens[0].drawn) for step in told)
