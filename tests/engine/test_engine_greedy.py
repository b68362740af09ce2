"""Greedy text in float32 is the plain text: with any draft, alone or in a batch, preempted or cached."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams, SpeculationParams
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3_text", "gpt2")


def prompts(count: int = 8, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(2, 128) for _ in range(rng.randrange(1, 45))) for _ in range(count)]


def greedy(seed: int = 0, **sampling: Any) -> list[Request]:
    wanted = {"temperature": 0.0, "max_tokens": 40, **sampling}
    return [Request(str(i), p, SamplingParams(**wanted)) for i, p in enumerate(prompts(seed=seed))]


def reference(model: Any, prompt: tuple[int, ...], max_tokens: int = 40) -> list[int]:
    """transformers' own forward over the whole text, one token at a time; no cache, none of our code."""
    model.set_attn_implementation("eager")
    tokens = list(prompt)
    for _ in range(max_tokens):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
        if tokens[-1] == 1:
            break
    return tokens[len(prompt) :]


def close_draft(tiny: Any, family: str) -> LoadedDraft:
    """A draft that is often right: the target with some noise on its weights."""
    model = tiny.model(0, family)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return LoadedDraft(256, model=model)


def head_draft() -> LoadedDraft:
    fingerprint = TargetFingerprint("tiny", 128, 32, "0", (0.0,))
    torch.manual_seed(3)
    config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 100, fingerprint)
    module = HeadModule(config).requires_grad_(False).eval()
    return LoadedDraft(256, head=module, vocab_ids=torch.arange(20, 120))


@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_gives_the_models_own_greedy_text(tiny: Any, family: str) -> None:
    expected = {r.request_id: reference(tiny.model(0, family), r.prompt_token_ids) for r in greedy()}
    for name, engine in {
        "plain": tiny.engine(tiny.model(0, family)),
        "speculative": tiny.engine(tiny.model(0, family), close_draft(tiny, family)),
        "one at a time": tiny.engine(tiny.model(0, family), close_draft(tiny, family), max_num_seqs=1),
        "segments": tiny.engine(tiny.model(0, family), close_draft(tiny, family), attention="segments"),
    }.items():
        ran = tiny.run(engine, greedy())
        assert ran.tokens == expected, name
        if name != "plain":
            kept = sum(o.metrics.speculation.num_accepted_draft_tokens for o in ran.last.values())
            assert kept > 0, "no candidate was ever kept: the comparison would prove little"


@pytest.mark.parametrize(("nodes", "depth"), [(1, 1), (3, 3), (5, 2), (12, 4), (30, 6)])
def test_any_tree_gives_the_same_text(tiny: Any, nodes: int, depth: int) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), greedy()).tokens
    draft = close_draft(tiny, "llama")
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=nodes, max_tree_depth=depth)
    assert tiny.run(engine, greedy()).tokens == expected


def test_a_head_on_hidden_states_gives_the_same_text(tiny: Any) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), greedy()).tokens
    assert tiny.run(tiny.engine(tiny.model(0), head_draft()), greedy()).tokens == expected


@pytest.mark.parametrize("kind", ["none", "model", "head"])
def test_preemption_loses_nothing(tiny: Any, kind: str) -> None:
    def draft() -> LoadedDraft | None:
        return {"none": lambda: None, "model": lambda: close_draft(tiny, "llama"), "head": head_draft}[kind]()

    sampling = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
    requests = [Request(str(i), tuple(range(20 + i, 26 + 2 * i)), sampling) for i in range(6)]
    expected = tiny.run(tiny.engine(tiny.model(0)), requests).tokens
    roomy = tiny.engine(tiny.model(0), draft())
    tight = tiny.engine(
        tiny.model(0), draft(), max_model_len=120, kv_memory=roomy.info.kv_bytes_per_row * 256
    )
    ran = tiny.run(tight, requests)
    assert ran.tokens == expected
    assert sum(stats.num_preemptions for stats in ran.stats) > 0


def test_cached_prefixes_change_nothing(tiny: Any) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), greedy()).tokens
    for draft in (None, close_draft(tiny, "llama"), head_draft()):
        engine = tiny.engine(tiny.model(0), draft)
        assert tiny.run(engine, greedy()).tokens == expected
        again = tiny.run(engine, greedy())
        assert again.tokens == expected
        hits = sum(output.usage.cached_tokens for output in again.last.values())
        assert hits == sum(len(prompt) - 1 for prompt in prompts()), "the last block was dropped"


def test_salts_keep_prefixes_apart(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0))
    tiny.run(engine, [Request("a", tuple(range(2, 40)), SamplingParams(max_tokens=2), cache_salt="x")])
    other = Request("b", tuple(range(2, 40)), SamplingParams(max_tokens=2), cache_salt="y")
    assert tiny.run(engine, [other]).last["b"].usage.cached_tokens == 0


def test_long_prompts_are_prefilled_in_chunks(tiny: Any) -> None:
    prompt = tuple(random.Random(1).randrange(2, 128) for _ in range(200))
    expected = reference(tiny.model(0), prompt, 20)
    for draft in (None, close_draft(tiny, "llama"), head_draft()):
        engine = tiny.engine(tiny.model(0), draft, max_num_seqs=2, max_num_batched_tokens=40)
        ran = tiny.run(engine, [Request("long", prompt, SamplingParams(temperature=0.0, max_tokens=20))])
        assert ran.tokens["long"] == expected
        assert max(stats.iteration_tokens for stats in ran.stats) <= 40


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1.4},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"logit_bias": ((5, 30.0), (7, -100.0), (1, -100.0))},
        {"min_tokens": 25, "stop_token_ids": tuple(range(40, 70))},
        {"ignore_eos": True},
        {"repetition_penalty": 0.8, "frequency_penalty": -0.5, "min_tokens": 10},
    ],
)
def test_parameters_hold_along_every_path(tiny: Any, sampling: dict[str, Any]) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), greedy(**sampling)).tokens
    plain = tiny.run(tiny.engine(tiny.model(0)), greedy()).tokens
    assert expected != plain or sampling == {"ignore_eos": True}
    for draft in (close_draft(tiny, "llama"), head_draft()):
        assert tiny.run(tiny.engine(tiny.model(0), draft), greedy(**sampling)).tokens == expected


@pytest.mark.parametrize("verifier", ["resispec", "target"])
def test_a_request_chooses_its_verifier_and_tree(tiny: Any, verifier: str) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), greedy()).tokens
    engine = tiny.engine(tiny.model(0), close_draft(tiny, "llama"))
    choices = [
        SpeculationParams(verifier=verifier),
        SpeculationParams(enabled=False),
        SpeculationParams(max_nodes=3, max_depth=2),
        SpeculationParams(),
    ]
    requests = [
        Request(r.request_id, r.prompt_token_ids, r.sampling, choices[i % 4]) for i, r in enumerate(greedy())
    ]
    ran = tiny.run(engine, requests)
    assert ran.tokens == expected
    assert ran.last["0"].metrics.speculation.verifier == verifier
    assert ran.last["1"].metrics.speculation is None
    assert len(ran.last["2"].metrics.speculation.proposed_by_depth) <= 2


def test_a_draft_with_a_shorter_context_steps_aside(tiny: Any) -> None:
    draft = LoadedDraft(32, model=tiny.model(0))
    requests = greedy(max_tokens=60, ignore_eos=True)
    expected = tiny.run(tiny.engine(tiny.model(0)), requests).tokens
    ran = tiny.run(tiny.engine(tiny.model(0), draft), requests)
    assert ran.tokens == expected
    assert any(dict(stats.speculation_off).get("draft_context") for stats in ran.stats)
    assert any(stats.speculation for stats in ran.stats)


def test_the_context_may_be_filled_to_the_last_token(tiny: Any) -> None:
    for draft in (None, close_draft(tiny, "llama"), head_draft()):
        engine = tiny.engine(tiny.model(0), draft, max_model_len=64)
        request = Request("full", tuple(range(2, 42)), SamplingParams(temperature=0.0, ignore_eos=True))
        ran = tiny.run(engine, [request])
        assert len(ran.tokens["full"]) == 24
        assert ran.last["full"].finish_reason == "length"


def test_padded_rows_are_never_proposed_nor_drawn(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), close_draft(tiny, "llama"), num_ids=60)
    sampled = [
        Request(str(i), tuple(t % 60 for t in p), SamplingParams(temperature=3.0, seed=i, max_tokens=30))
        for i, p in enumerate(prompts())
    ]
    ran = tiny.run(engine, sampled)
    assert all(token < 60 for tokens in ran.tokens.values() for token in tokens)
