"""Every verifier in the running engine: greedy text, mixed batches, labels, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.config import ConfigError
from resispec.engine.request import Request, RequestError, SamplingParams, SpeculationParams
from resispec.engine.verifiers.table import VERIFIERS
from resispec.models.base import StepInputs, StepOutputs
from resispec.models.causal import CausalModel


@pytest.fixture
def engine(tiny: Any) -> Any:
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    return tiny.engine(tiny.model(0), draft, max_tree_nodes=8, allow_inexact=True)


def request(name: str, verifier: str | None, **sampling: Any) -> Request:
    params = SamplingParams(max_tokens=24, ignore_eos=True, **sampling)
    return Request(name, (5, 6, 7), params, SpeculationParams(verifier is not None, verifier))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_verifiers_side_by_side(tiny: Any, engine: Any, temperature: float) -> None:
    """One step holds trees of every way of drawing. Greedy text is the target's own."""
    names = sorted(VERIFIERS)
    requests = [request(name, name, temperature=temperature, seed=9) for name in names]
    ran = tiny.run(engine, [*requests, request("plain", None, temperature=temperature, seed=9)])
    for name in names:
        metrics = ran.last[name].metrics.speculation
        assert (metrics.verifier, metrics.exact) == (name, name != "resispec-paper")
        assert metrics.num_draft_tokens > 0
        if temperature == 0:
            assert ran.tokens[name] == ran.tokens["plain"]
    exact = {part.verifier: part.exact for stats in ran.stats for part in stats.speculation}
    assert exact == {name: name != "resispec-paper" for name in names}


@pytest.mark.parametrize("verifier", sorted(VERIFIERS))
def test_company_changes_nothing(tiny: Any, engine: Any, verifier: str) -> None:
    """A seeded request has the same text alone and beside requests with other verifiers."""
    alone = tiny.run(engine, [request("a", verifier, seed=3)]).tokens["a"]
    others = [request(name, name, seed=4) for name in VERIFIERS]
    assert tiny.run(engine, [request("a", verifier, seed=3), *others]).tokens["a"] == alone


def test_no_step_failed(tiny: Any, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The engine survives a rule that refuses its trees, so only its log would tell."""
    with caplog.at_level(logging.ERROR):
        tiny.run(engine, [request(name, name) for name in VERIFIERS])
    assert not caplog.records


@pytest.mark.parametrize(("verifier", "ends"), [("resispec", "length"), ("resispec-tree", "error")])
def test_rules_over_whole_trees_need_numbers_in_them(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, verifier: str, ends: str
) -> None:
    """A law that means nothing may sway a rule over whole trees even where it is not kept."""
    target = tiny.model(0)
    engine = tiny.engine(target, LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1)))
    given = torch.tensor(
        [5, 6, 7, *tiny.run(tiny.engine(tiny.model(0)), [greedy("plain", None)]).tokens["plain"]]
    )
    original = CausalModel.forward

    def spoiling(self: CausalModel, inputs: StepInputs) -> StepOutputs:
        outputs = original(self, inputs)
        if self.model is not target:
            return outputs
        strange = ~torch.isin(inputs.token_ids[inputs.logits_index], given)
        return replace(outputs, logits=outputs.logits.masked_fill(strange[:, None], float("nan")))

    monkeypatch.setattr(CausalModel, "forward", spoiling)
    assert tiny.run(engine, [greedy("a", verifier)]).last["a"].finish_reason == ends


def greedy(name: str, verifier: str | None) -> Request:
    return request(name, verifier, temperature=0.0)


def test_an_inexact_verifier_needs_leave(tiny: Any) -> None:
    with pytest.raises(ConfigError, match=r"resispec-paper.*not exact.*--allow-inexact") as caught:
        tiny.engine(tiny.model(0), verifier="resispec-paper")
    assert caught.value.setting == "verifier"
    engine = tiny.engine(tiny.model(0))
    assert "resispec-paper" not in engine.info.verifiers
    with pytest.raises(RequestError, match=r"not exact.*--allow-inexact") as refused:
        engine.add(request("a", "resispec-paper"))
    assert refused.value.param == "speculation.verifier"
    allowed = tiny.engine(tiny.model(0), verifier="resispec-paper", allow_inexact=True)
    assert "resispec-paper" in allowed.info.verifiers
