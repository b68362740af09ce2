"""Known candidates in the running engine: any trie, beside any draft, changes no text and leaks no row."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, RequestError, SamplingParams, SpeculationParams
from resispec.engine.sources.base import Path
from resispec.engine.sources.factory import SourceFactory
from resispec.engine.sources.request_sources import RequestSources
from resispec.engine.verifiers.fit import takes_known
from resispec.engine.verifiers.table import VERIFIERS
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

KNOWING = sorted(name for name, verifier in VERIFIERS.items() if takes_known(verifier))


class RandomTries:
    """Bushy tries that depend on the text alone. Where it knows the answer, it is right now and then."""

    name = "random"

    def __init__(self, answer: Sequence[int] = (), num_ids: int = 128) -> None:
        self._answer = answer
        self._num_ids = num_ids

    def paths(self, token_ids: Sequence[int], max_tokens: int) -> tuple[Path, ...]:
        rng = random.Random(hash(tuple(token_ids[-6:])))
        truth = self._answer[len(token_ids) :]
        paths = []
        for _ in range(rng.randrange(5)):
            tokens = [
                truth[i] if i < len(truth) and rng.random() < 0.7 else rng.randrange(self._num_ids)
                for i in range(min(max_tokens, rng.randrange(1, 7)))
            ]
            paths.append(Path(tuple(tokens), tuple(rng.random() for _ in tokens)))
        return tuple(paths)

    def committed(self, token_ids: Sequence[int], start: int) -> None:
        assert start <= len(token_ids)


def inject(monkeypatch: pytest.MonkeyPatch, answers: dict[tuple[int, ...], list[int]] | None = None) -> None:
    def make(self: SourceFactory, request: Request, names: Sequence[str]) -> RequestSources:
        del self
        known = [*request.prompt_token_ids, *(answers or {}).get(request.prompt_token_ids, [])]
        return RequestSources([RandomTries(known)] if "ngram" in names else [])

    monkeypatch.setattr(SourceFactory, "make", make)


def drafts(tiny: Any, kind: str) -> LoadedDraft | None:
    if kind == "none":
        return None
    if kind == "model":
        return LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    fingerprint = TargetFingerprint("tiny", 128, 32, "0", (0.0,))
    config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 100, fingerprint)
    return LoadedDraft(
        256, head=HeadModule(config).requires_grad_(False).eval(), vocab_ids=torch.arange(20, 120)
    )


def requests(**sampling: Any) -> list[Request]:
    rng = random.Random(3)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **sampling})
    prompts = [tuple(rng.randrange(2, 128) for _ in range(rng.randrange(1, 40))) for _ in range(8)]
    return [Request(str(i), prompt, params) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("kind", ["none", "model", "head"])
@pytest.mark.parametrize("verifier", ["resispec", "resispec-tree"])
@pytest.mark.parametrize(("nodes", "depth"), [(1, 1), (6, 2), (14, 4)])
def test_greedy_text_stays_the_same(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, kind: str, verifier: str, nodes: int, depth: int
) -> None:
    plain = tiny.run(tiny.engine(tiny.model(0)), requests()).tokens
    inject(monkeypatch, {r.prompt_token_ids: plain[r.request_id] for r in requests()})
    engine = tiny.engine(
        tiny.model(0),
        drafts(tiny, kind),
        proposers=("draft", "ngram"),
        verifier=verifier,
        max_tree_nodes=nodes,
        max_tree_depth=depth,
    )
    ran = tiny.run(engine, requests())
    assert ran.tokens == plain
    counts = [count for output in ran.last.values() for count in output.metrics.speculation.by_source]
    by_source = {
        name: sum(count.num_accepted for count in counts if count.source == name)
        for name in ("random", "draft")
    }
    assert by_source["random"] > 20
    assert sum(by_source.values()) == sum(
        output.metrics.speculation.num_accepted_draft_tokens for output in ran.last.values()
    )


@pytest.mark.parametrize("kind", ["none", "model", "head"])
@pytest.mark.parametrize("verifier", [*KNOWING])
def test_a_seed_gives_one_text_in_any_company(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, kind: str, verifier: str
) -> None:
    inject(monkeypatch)
    sampled = [
        Request(r.request_id, r.prompt_token_ids, SamplingParams(max_tokens=55, seed=i, ignore_eos=True))
        for i, r in enumerate(requests())
    ]
    config = {"proposers": ("draft", "ngram"), "verifier": verifier}
    together = tiny.run(tiny.engine(tiny.model(0), drafts(tiny, kind), **config), sampled).tokens
    alone = tiny.engine(tiny.model(0), drafts(tiny, kind), max_num_seqs=1, **config)
    assert tiny.run(alone, sampled).tokens == together
    tight = tiny.engine(
        tiny.model(0),
        drafts(tiny, kind),
        max_model_len=100,
        kv_memory=alone.info.kv_bytes_per_row * 160,
        **config,
    )
    ran = tiny.run(tight, sampled)
    assert ran.tokens == together
    assert sum(stats.num_preemptions for stats in ran.stats) > 0


def test_a_rule_without_chosen_children_goes_on_beside_trees_that_have_some(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one shape, so that they grow together. A step that failed would be run again, and logged."""
    inject(monkeypatch)
    config = {"proposers": ("draft", "ngram"), "allow_inexact": True, "baseline_probe_share": 0.0}
    engine = tiny.engine(tiny.model(0), drafts(tiny, "model"), max_tree_nodes=8, max_step_nodes=64, **config)
    names = ("specinfer", "resispec-paper")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    wanted = [
        Request("specinfer", (5, 6, 7), params, SpeculationParams(verifier="specinfer")),
        # As many drafted as the other has beside known ones, now and then.
        Request(
            "resispec-paper", (5, 6, 7), params, SpeculationParams(verifier="resispec-paper", max_nodes=4)
        ),
    ]
    with caplog.at_level(logging.ERROR):
        ran = tiny.run(engine, wanted)
    assert not caplog.records
    by_source = {name: ran.last[name].metrics.speculation.by_source for name in names}
    sources = {name: {count.source for count in by_source[name] if count.num_proposed} for name in names}
    assert sources == {"specinfer": {"draft", "random"}, "resispec-paper": {"draft"}}


def test_what_a_verifier_cannot_take_is_refused_when_asked_for(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), drafts(tiny, "model"), proposers=("draft", "ngram", "prediction"))
    for verifier in ("block", "without-replacement"):
        speculation = SpeculationParams(verifier=verifier, proposers=("ngram",))
        with pytest.raises(RequestError, match=r"no rule for candidates.*resispec-tree") as caught:
            engine.add(Request("a", (5,), speculation=speculation))
        assert caught.value.param == "speculation.proposer"
        with pytest.raises(RequestError, match="cannot use a prediction"):
            engine.add(
                Request(
                    "a", (5,), prediction_token_ids=(6,), speculation=SpeculationParams(verifier=verifier)
                )
            )
        ran = tiny.run(engine, [Request(verifier, (5,), speculation=SpeculationParams(verifier=verifier))])
        assert {c.source for c in ran.last[verifier].metrics.speculation.by_source} == {"draft"}
    with pytest.raises(RequestError, match="'recycle' is not one of this server's: draft, ngram"):
        engine.add(Request("a", (5,), speculation=SpeculationParams(proposers=("recycle",))))
    with pytest.raises(RequestError, match="not among the proposers") as caught:
        engine.add(
            Request("a", (5,), prediction_token_ids=(6,), speculation=SpeculationParams(enabled=False))
        )
    assert caught.value.param == "prediction"


@pytest.mark.parametrize("kind", ["none", "model"])
def test_a_prediction_saves_steps_and_is_traced(tiny: Any, kind: str) -> None:
    """One that is right but for one token, which is not in the answer otherwise."""
    (plain,) = requests(max_tokens=30)[:1]
    answer = tiny.run(tiny.engine(tiny.model(0)), [plain]).tokens["0"]
    wrong = next(token for token in range(2, 128) if token not in answer)
    predicted = (*answer[:12], wrong, *answer[13:])
    wanted = SpeculationParams(proposers=("prediction",), trace=True)
    proposers = ("draft", "prediction")
    engine = tiny.engine(tiny.model(0), drafts(tiny, kind), proposers=proposers, baseline_probe_share=0.0)
    traces = []
    engine.add(Request("a", plain.prompt_token_ids, plain.sampling, wanted, prediction_token_ids=predicted))
    tokens: list[int] = []
    while engine.has_work:
        for output in engine.step().outputs:
            tokens += output.token_ids
            traces += output.trace
    assert tokens == answer
    assert len(traces) <= 6, "30 tokens with one surprise, 12 candidates at most"
    origins = {candidate.origin for trace in traces for candidate in trace.candidates}
    assert origins == {"prediction"}
    assert any(candidate.kept for trace in traces for candidate in trace.candidates)


def test_traces_tell_sources_from_the_draft(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the draft expands a known node: its children are listed once, with all there are."""
    inject(monkeypatch)
    engine = tiny.engine(tiny.model(0), drafts(tiny, "model"), proposers=("draft", "ngram"))
    (first,) = requests(temperature=1.0)[:1]
    engine.add(Request("a", first.prompt_token_ids, first.sampling, SpeculationParams(trace=True)))
    mixed = 0
    while engine.has_work:
        for trace in (trace for output in engine.step().outputs for trace in output.trace):
            slots = [(candidate.parent, candidate.child) for candidate in trace.candidates]
            assert len(set(slots)) == len(slots)
            parents: dict[int, set[str]] = {}
            for candidate in trace.candidates:
                parents.setdefault(candidate.parent, set()).add(candidate.origin)
            mixed += sum({"random", "tail"} <= origins for origins in parents.values())
            kept = [candidate.token_id for candidate in trace.candidates if candidate.kept]
            assert kept == [token.token_id for token in trace.tokens[: len(kept)]]
    assert mixed > 3
