"""Deciding where the walks come to gives what deciding everywhere gives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams, SpeculationMode, SpeculationParams
from resispec.engine.runner import decisions, greedy
from resispec.engine.runner.decisions import Decisions
from resispec.engine.runner.verify import Verification

ANY, NEVER = -1, 10**12  # numbers in laws that a level has to spare


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each way was gone."""
    counts: Counter[str] = Counter()
    for name in ("everywhere", "on_the_way"):
        original = getattr(Decisions, name)

        def counted(self: Decisions, *args: Any, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(self, *args)

        monkeypatch.setattr(Decisions, name, counted)
    return counts


def requests(*verifiers: str, **changes: Any) -> list[Request]:
    """Greedy, sampled and penalised ones, all of which follow their seeds."""
    params: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 0.0, "frequency_penalty": 0.8},
    ]
    return [
        Request(
            f"{verifier} {index}",
            (5, 6, 7, index),
            SamplingParams(max_tokens=24, ignore_eos=True, seed=index, **used),
            SpeculationParams(verifier=verifier, mode=SpeculationMode.FIXED, **changes),
        )
        for verifier in verifiers
        for index, used in enumerate(params)
    ]


@pytest.mark.parametrize("verifiers", [("resispec",), ("resispec", "specinfer", "target")])
def test_both_ways_write_the_same(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, ways: Counter[str], verifiers: tuple[str, ...]
) -> None:
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3)
    texts = []
    for worth, way in ((ANY, "on_the_way"), (NEVER, "everywhere")):
        monkeypatch.setattr(decisions, "WORTH_A_LEVEL", worth)
        ways.clear()
        ran = tiny.run(engine, requests(*verifiers))
        assert ways[way] > 10
        assert way == "on_the_way" or not ways["on_the_way"]
        assert sum(last.metrics.speculation.num_accepted_draft_tokens for last in ran.last.values()) >= 15
        texts.append(ran.tokens)
    assert texts[0] == texts[1]


def test_who_must_see_all_nodes(tiny: Any, monkeypatch: pytest.MonkeyPatch, ways: Counter[str]) -> None:
    """Rules over whole trees, and requests that are traced."""
    monkeypatch.setattr(decisions, "WORTH_A_LEVEL", ANY)
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3)
    tiny.run(engine, requests("resispec-tree"))
    tiny.run(engine, requests("resispec", trace=True))
    assert set(ways) == {"everywhere"}


def test_few_nodes_are_looked_at_together(tiny: Any, ways: Counter[str]) -> None:
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3)
    tiny.run(engine, requests("resispec"))
    assert set(ways) == {"everywhere"}


@pytest.mark.parametrize("verifier", ["resispec", "specinfer", "target"])
@pytest.mark.parametrize("worth", [ANY * 1000, NEVER])
def test_greedy_walks_need_no_laws(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, ways: Counter[str], verifier: str, worth: int
) -> None:
    """The same texts, by the same steps, as where every law is made and tested."""
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3)
    wanted = [one for one in requests(verifier) if one.sampling.temperature == 0.0]
    calls: Counter[str] = Counter()
    for name in ("follow_by_level", "follow_at_once"):
        original = getattr(greedy, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Any:
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(greedy, name, counted)
    monkeypatch.setattr(greedy, "WORTH_A_LEVEL", worth)
    followed = tiny.run(engine, wanted)
    assert not ways
    assert set(calls) == {"follow_at_once" if worth == NEVER else "follow_by_level"}
    monkeypatch.setattr(Verification, "_leaves_no_choice", lambda _: False)
    decided = tiny.run(engine, wanted)
    assert sum(ways.values()) > 5
    assert followed.tokens == decided.tokens
    assert len(followed.stats) == len(decided.stats)
