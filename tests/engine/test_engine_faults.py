"""What goes wrong inside the engine stays with the request it went wrong for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch

from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.config import EngineConfig
from resispec.engine.detokenizer import IncrementalDetokenizer
from resispec.engine.outputs import FinishReason
from resispec.engine.proposers import draft as draft_proposer
from resispec.engine.request import Request, RequestError, SamplingParams, SpeculationParams
from resispec.models.base import StepInputs, StepOutputs
from resispec.models.causal import CausalModel
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

POISON = 99  # a token that only poisoned prompts hold
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logit_bias=((POISON, -100.0),))

Forward = Callable[[CausalModel, StepInputs], StepOutputs]


def healthy(count: int = 5, sampling: SamplingParams = GREEDY) -> list[Request]:
    rng = random.Random(4)
    prompts = [tuple(rng.randrange(2, 98) for _ in range(rng.randrange(5, 60))) for _ in range(count)]
    return [Request(str(index), prompt, sampling) for index, prompt in enumerate(prompts)]


def poisoned() -> Request:
    return Request("poisoned", (*range(10, 20), POISON, *range(20, 90)), GREEDY)


def draft_model(tiny: Any) -> LoadedDraft:
    model = tiny.model(0)
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape))
    return LoadedDraft(256, model=model)


def draft_head() -> LoadedDraft:
    torch.manual_seed(3)
    config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 100, TargetFingerprint("tiny", 128, 32, "0", (0.0,)))
    module = HeadModule(config).requires_grad_(False).eval()
    return LoadedDraft(256, head=module, vocab_ids=torch.arange(20, 120))


def patch_forward(monkeypatch: pytest.MonkeyPatch, model: Any, forward: Forward) -> None:
    """Let ``forward`` stand in for the forward of the steps of ``model``."""
    original = CausalModel.forward

    def patched(self: CausalModel, inputs: StepInputs) -> StepOutputs:
        return forward(self, inputs) if self.model is model else original(self, inputs)

    monkeypatch.setattr(CausalModel, "forward", patched)


def test_a_failing_request_fails_alone(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = CausalModel.forward
    target = tiny.model(0)
    expected = tiny.run(tiny.engine(tiny.model(0)), healthy()).tokens
    engine = tiny.engine(target, draft_model(tiny), max_num_batched_tokens=300)

    def failing(self: CausalModel, inputs: StepInputs) -> StepOutputs:
        if POISON in inputs.token_ids.tolist():
            raise RuntimeError("this request's fault")
        return original(self, inputs)

    patch_forward(monkeypatch, target, failing)
    ran = tiny.run(engine, [*healthy(), poisoned()])
    assert ran.last["poisoned"].finish_reason is FinishReason.ERROR
    assert ran.last["poisoned"].error is not None
    assert "RuntimeError" in ran.last["poisoned"].error
    assert {name: tokens for name, tokens in ran.tokens.items() if name != "poisoned"} == expected


@pytest.mark.parametrize("kind", ["model", "head"])
def test_numbers_gone_bad_are_not_handed_on(tiny: Any, kind: str) -> None:
    """Neither through the prefix cache nor through rows that somebody else gets."""

    def engine_of(target: Any, caching: bool) -> Any:
        draft = draft_model(tiny) if kind == "model" else draft_head()
        return tiny.engine(target, draft, prefix_caching=caching, max_num_seqs=1, max_num_batched_tokens=32)

    for caching in (True, False):
        target = tiny.model(0)
        calm = tiny.run(engine_of(tiny.model(0), caching), [poisoned(), *healthy()])
        engine = engine_of(target, caching)
        embedding = target.get_input_embeddings().weight
        sane = embedding[POISON].clone()
        embedding[POISON] = float("nan")
        assert tiny.run(engine, [poisoned()]).last["poisoned"].finish_reason is FinishReason.ERROR
        embedding[POISON] = sane
        ran = tiny.run(engine, [poisoned(), *healthy()])
        assert ran.tokens == calm.tokens
        for name, output in ran.last.items():  # the draft is none the worse for it
            assert output.metrics is not None
            assert calm.last[name].metrics.speculation.accepted_by_depth == (
                output.metrics.speculation.accepted_by_depth
            )


def test_only_what_is_kept_need_be_a_number(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = CausalModel.forward
    expected = tiny.run(tiny.engine(tiny.model(0)), healthy(1)).tokens
    given = torch.tensor([*healthy(1)[0].prompt_token_ids, *expected["0"]])
    target, spoilt = tiny.model(0), 0
    engine = tiny.engine(target, draft_model(tiny), max_tree_nodes=20, baseline_probe_share=0.0)

    def spoiling(self: CausalModel, inputs: StepInputs) -> StepOutputs:
        nonlocal spoilt
        outputs = original(self, inputs)
        strange = ~torch.isin(inputs.token_ids[inputs.logits_index], given)
        spoilt += int(strange.sum())
        return replace(outputs, logits=outputs.logits.masked_fill(strange[:, None], float("nan")))

    patch_forward(monkeypatch, target, spoiling)
    assert tiny.run(engine, healthy(1)).tokens == expected
    assert spoilt > 20


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_out_of_its_mind_costs_speed_only(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, value: float, temperature: float
) -> None:
    original = CausalModel.forward
    sampling = replace(GREEDY, temperature=temperature, top_k=1)
    expected = tiny.run(tiny.engine(tiny.model(0)), healthy(sampling=sampling)).tokens
    draft = draft_model(tiny)

    def mad(self: CausalModel, inputs: StepInputs) -> StepOutputs:
        outputs = original(self, inputs)
        return replace(outputs, logits=torch.full_like(outputs.logits, value))

    engine = tiny.engine(tiny.model(0), draft)
    patch_forward(monkeypatch, draft.model, mad)
    assert tiny.run(engine, healthy(sampling=sampling)).tokens == expected


def test_a_detokenizer_that_fails_ends_its_request_only(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), healthy())
    unlucky = "2"
    fatal = expected.tokens[unlucky][10]
    spared = [name for name, tokens in expected.tokens.items() if fatal not in tokens]
    assert spared
    original = IncrementalDetokenizer.push

    def push(self: IncrementalDetokenizer, token_ids: Any) -> Any:
        if fatal in token_ids:
            raise ValueError("no such token")
        return original(self, token_ids)

    monkeypatch.setattr(IncrementalDetokenizer, "push", push)
    ran = tiny.run(tiny.engine(tiny.model(0), draft_model(tiny)), healthy())
    assert ran.last[unlucky].finish_reason is FinishReason.ERROR
    assert {name: ran.tokens[name] for name in spared} == {name: expected.tokens[name] for name in spared}


def test_a_long_catch_up_is_run_in_pieces(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt cached by requests without speculation, for which the draft has run nothing."""
    original = CausalModel.forward
    monkeypatch.setattr(draft_proposer, "_CATCH_UP_TOKENS", 50)
    prompt = tuple(random.Random(5).randrange(2, 98) for _ in range(180))
    requests = [Request(str(index), (*prompt, 50 + index), GREEDY) for index in range(4)]
    expected = tiny.run(tiny.engine(tiny.model(0)), requests).tokens
    for draft in (draft_model(tiny), draft_head()):
        engine = tiny.engine(tiny.model(0), draft)
        tiny.run(engine, [Request("first", (*prompt, 2), GREEDY, SpeculationParams(enabled=False))])
        sizes: list[int] = []

        def measured(self: CausalModel, inputs: StepInputs, sizes: list[int] = sizes) -> StepOutputs:
            sizes.append(inputs.token_ids.shape[0])
            return original(self, inputs)

        if draft.model is not None:
            patch_forward(monkeypatch, draft.model, measured)
        ran = tiny.run(engine, requests)
        assert ran.tokens == expected
        assert all(output.usage.cached_tokens >= 176 for output in ran.last.values())
        if draft.model is not None:
            assert max(sizes) <= 50


def test_ids_that_do_not_exist_end_nothing(tiny: Any) -> None:
    """Configurations name such an EOS, -1 for instance, and mean that there is none."""
    last = tiny.vocabulary - 1
    engine = assemble(
        EngineConfig("tiny", draft="tiny"),
        LoadedTarget(tiny.model(0), tiny.tokenizer(), "tiny", 256, tiny.vocabulary, (-1, 1, 4000), {}),
        draft_model(tiny),
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=8, min_tokens=5, logit_bias=((last, 100.0),))
    assert tiny.run(engine, [Request("a", (5, 6), sampling)]).tokens["a"] == [last] * 8


@pytest.mark.parametrize("temperature", [1e39, 1e300])
def test_what_is_masked_stays_so_at_any_temperature(tiny: Any, temperature: float) -> None:
    engine = tiny.engine(tiny.model(0), draft_model(tiny))
    sampling = SamplingParams(temperature=temperature, min_tokens=10, max_tokens=10)
    ran = tiny.run(engine, [Request(str(i), (5, 6), replace(sampling, seed=i)) for i in range(20)])
    drawn = [token for tokens in ran.tokens.values() for token in tokens]
    assert len(drawn) == 200
    assert tiny.eos not in drawn
    assert len(set(drawn)) > 50, "such a temperature makes all tokens equally likely"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", 1e39),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", 1e30),
        ("logit_bias", ((5, float("nan")),)),
        ("stop", ("",)),
        ("min_tokens", 3),
    ],
)
def test_what_no_law_can_be_made_of_is_refused(tiny: Any, field: str, value: Any) -> None:
    every = {"stop_token_ids": tuple(range(tiny.vocabulary))} if field == "min_tokens" else {}
    engine = tiny.engine(tiny.model(0))
    with pytest.raises(RequestError) as refused:
        engine.add(Request("a", (5, 6), SamplingParams(**{field: value, **every})))
    assert refused.value.param == field
    assert not engine.has_work


def test_memory_does_not_grow(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), draft_model(tiny), max_model_len=64, max_num_seqs=8)
    rng = random.Random(6)

    def serve(count: int) -> int:
        """Resident bytes after ``count`` more requests, a tenth of them aborted."""
        for start in range(0, count, 50):
            for index in range(start, start + 50):
                prompt = tuple(rng.randrange(2, 128) for _ in range(rng.randrange(1, 40)))
                engine.add(Request(str(index), prompt, SamplingParams(max_tokens=4)))
            engine.step()
            for index in range(start, start + 50, 10):
                engine.abort(str(index))
            while engine.has_work:
                engine.step()
        engine.check_integrity()
        assert engine.kv_usage == 0.0
        return int(psutil.Process().memory_info().rss)

    before = serve(200)
    assert serve(500) - before < 4 << 20
