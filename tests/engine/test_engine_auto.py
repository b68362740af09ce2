"""The controller in the engine: texts do not change, seeds hold, bad drafts are given up, figures add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from resispec.engine.budget.base import Choice, Off
from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams, SpeculationMode, SpeculationParams
from resispec.engine.runner import verify

AUTO = SpeculationMode.AUTO


def request(name: str, length: int = 60, mode: SpeculationMode | None = None, **sampling: Any) -> Request:
    prompt = tuple(2 + (7 * index + 11 * ord(name[0])) % 120 for index in range(9))
    params = SamplingParams(max_tokens=length, ignore_eos=True, **sampling)
    return Request(name, prompt, params, SpeculationParams(mode=mode))


def fair_draft(tiny: Any) -> LoadedDraft:
    torch.manual_seed(3)
    model = tiny.model(0)
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape))
    return LoadedDraft(256, model=model)


def test_greedy_text_is_the_plain_one_at_any_load(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), fair_draft(tiny), baseline_probe_share=0.2, max_step_nodes=64)
    plain = tiny.engine(tiny.model(0))
    names = "abcdefgh"
    modes = [AUTO, SpeculationMode.FIXED] * 4  # of the fixed ones it is sure that they have trees
    ran = tiny.run(
        engine,
        [request(name, mode=mode, temperature=0.0) for name, mode in zip(names, modes, strict=True)],
    )
    for name, mode in zip(names, modes, strict=True):
        alone = tiny.run(plain, [request(name, temperature=0.0)])
        assert ran.tokens[name] == alone.tokens[name]
        assert ran.last[name].metrics.speculation.mode is mode
    reasons = {reason for step in ran.stats for reason, _ in step.speculation_off}
    assert "baseline" in reasons


@pytest.mark.parametrize(
    "proposers", [("draft",), ("draft", "ngram", "prediction"), ("prediction", "recycle")], ids="+".join
)
def test_a_seed_gives_the_same_text_alone_in_a_batch_after_preemption_and_with_a_cached_prefix(
    tiny: Any, proposers: tuple[str, ...]
) -> None:
    """In engines that have seen other things, and measured other costs."""

    def engine(**config: Any) -> Any:
        draft = fair_draft(tiny) if "draft" in proposers else None
        return tiny.engine(tiny.model(0), draft, speculation=AUTO, proposers=proposers, **config)

    prompt = tuple(2 + index % 7 for index in range(40))
    sampling = SamplingParams(max_tokens=50, ignore_eos=True, seed=11, temperature=0.8)
    one = Request("s", prompt, sampling)
    if "prediction" in proposers:
        predicted = tiny.run(engine(), [one]).tokens["s"]
        one = replace(one, prediction_token_ids=tuple(predicted))
    alone = tiny.run(engine(), [one])
    proposed = {part.source for part in alone.last["s"].metrics.speculation.by_source}
    assert proposed >= {"draft", "prediction"} & {*proposers}
    busy = engine()
    tiny.run(busy, [request(name) for name in "abc"])
    crowd = [request(name, 80, temperature=1.5) for name in "defg"]
    assert tiny.run(busy, [*crowd, one]).tokens["s"] == alone.tokens["s"]
    again = tiny.run(busy, [one])
    assert again.last["s"].usage.cached_tokens > 30
    assert again.tokens["s"] == alone.tokens["s"]
    scarce = engine(max_model_len=100, kv_memory=144 * busy.info.kv_bytes_per_row)
    ran = tiny.run(scarce, [*crowd, one])
    assert ran.last["s"].metrics.num_preemptions + sum(step.num_preemptions for step in ran.stats) > 0
    assert ran.tokens["s"] == alone.tokens["s"]


def test_without_trees_nothing_of_drafting_or_verification_runs(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the controller may decide of any step costs no more than plain decoding."""
    config = {"speculation": AUTO, "proposers": ("draft", "ngram")}
    engine = tiny.engine(tiny.model(0), fair_draft(tiny), **config)
    none = Choice(None, Off.NO_GAIN, known=False)
    monkeypatch.setattr(engine.controller, "plan", lambda views, _: [none] * len(views))
    monkeypatch.setattr(engine.controller, "keeps_up", lambda *_, **__: False)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing was to be drafted or verified")

    monkeypatch.setattr(engine._runner._proposer, "grow", never)
    for name in ("Decisions", "walk"):
        monkeypatch.setattr(verify, name, never)
    requests = [request(name, temperature=temperature) for name, temperature in (("a", 0.0), ("b", 1.0))]
    ran = tiny.run(engine, requests)
    assert ran.tokens["a"] == tiny.run(tiny.engine(tiny.model(0)), requests[:1]).tokens["a"]
    assert [len(tokens) for tokens in ran.tokens.values()] == [60, 60]
    assert all(output.error is None for output in ran.last.values())


@pytest.mark.parametrize("seed", [None, 4])
def test_a_draft_that_knows_nothing_is_given_up(tiny: Any, seed: int | None) -> None:
    """The target, an untrained one too, draws from a law about as flat as this draft's: a few are kept."""
    draft = LoadedDraft(256, model=tiny.model(99, num_hidden_layers=1))
    engine = tiny.engine(
        tiny.model(0, initializer_range=1.0), draft, speculation=AUTO, baseline_probe_share=0.0
    )
    ran = tiny.run(engine, [request("a", 240, seed=seed, temperature=0.7)])
    late = [step for step in ran.stats[-60:] if step.generation_tokens]
    drafting = sum(1 for step in late if step.speculation)
    assert drafting <= len(late) / 4
    assert any(reason == "no_gain" for step in late for reason, _ in step.speculation_off)


def test_modes_differ_between_requests_of_one_step(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), fair_draft(tiny), speculation=SpeculationMode.OFF, max_step_nodes=64)
    requests = [request(mode.value[0] + "x", 40, mode) for mode in SpeculationMode]
    ran = tiny.run(engine, [*requests, request("default", 40)])
    assert ran.last["ox"].metrics.speculation is None
    assert ran.last["default"].metrics.speculation is None
    fixed = ran.last["fx"].metrics.speculation
    assert fixed.num_spec_steps > 5
    assert fixed.mode is SpeculationMode.FIXED
    assert ran.last["ax"].metrics.speculation.mode is AUTO


def test_the_speedup_is_plain_time_over_real_time(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), fair_draft(tiny), baseline_probe_share=0.5, max_step_nodes=64)
    ran = tiny.run(engine, [request(name, 50) for name in "ab"])
    for name in "ab":
        figures = ran.last[name].metrics.speculation
        assert figures.num_decoded_tokens == 49
        assert figures.speedup == pytest.approx(figures.plain_ms / figures.decode_ms)
        assert figures.baseline_ms_per_token == pytest.approx(figures.plain_ms / 49)
        assert figures.decode_ms == pytest.approx(ran.last[name].metrics.generation_time_ms)
        assert 0.5 < figures.baseline_measured <= 1
    single = tiny.run(engine, [request("c", 1)]).last["c"].metrics.speculation
    assert (single.speedup, single.baseline_ms_per_token) == (None, None)
