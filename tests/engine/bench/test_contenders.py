"""Contenders measure what really happened."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from resispec.engine.bench.contenders import BenchError, EngineContender
from resispec.engine.bench.measurement import pool
from resispec.engine.bench.transformers_contender import TransformersContender
from resispec.engine.bench.workload import Workload
from resispec.engine.build import LoadedDraft
from resispec.engine.engine import Engine
from resispec.engine.outputs import StepResult
from resispec.engine.request import RequestError, SpeculationMode, SpeculationParams

PROMPTS = tuple((7 + n, 9, 11, 2 * n + 13) for n in range(4))


def work(batch: int = 1, temperature: float = 0.0, tokens: int = 12, prompts: Any = PROMPTS) -> Workload:
    return Workload("made", temperature, batch, tokens, prompts)


def pair(tiny: Any, draft_seed: int = 0, **config: Any) -> Engine:
    """The draft has the target's own weights unless seeded otherwise."""
    engine: Engine = tiny.engine(tiny.model(0), LoadedDraft(256, model=tiny.model(draft_seed)), **config)
    return engine


def recorded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[StepResult]:
    results: list[StepResult] = []
    step = engine.step

    def record() -> StepResult:
        results.append(step())
        return results[-1]

    monkeypatch.setattr(engine, "step", record)
    return results


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch", [1, 3])
def test_figures_are_those_of_the_steps(tiny, monkeypatch, temperature, batch):
    engine = pair(tiny, draft_seed=1)
    results = recorded(engine, monkeypatch)
    measured = EngineContender("speculative", engine).run(work(batch, temperature))
    blocks: dict[str, list[int]] = defaultdict(list)
    for result in results:
        for output in result.outputs:
            blocks[output.request_id].append(len(output.token_ids))
    ended = [stats.metrics.speculation for result in results for stats in result.stats.finished]
    finished = [metrics for metrics in ended if metrics is not None]
    assert len(finished) == len(PROMPTS)
    assert [sum(sizes) for sizes in blocks.values()] == [12] * len(PROMPTS)
    assert measured.tokens == 12 * len(PROMPTS)
    decoded = [size for sizes in blocks.values() for size in sizes[1:]]
    assert measured.tokens_per_step == sum(decoded) / len(decoded)
    assert measured.drafts == sum(metrics.num_spec_steps for metrics in finished)
    assert measured.draft_nodes == sum(metrics.num_draft_tokens for metrics in finished) > 0
    assert len(measured.first_token_seconds) == len(PROMPTS)
    assert measured.decode_steps == sum(result.stats.prompt_tokens == 0 for result in results)
    assert sum(measured.phases.values()) < measured.seconds
    assert 0 < measured.decode_seconds < measured.seconds


def test_plain_gives_one_token_a_step(tiny):
    measured = EngineContender("plain", tiny.engine(tiny.model(0))).run(work())
    assert measured.tokens_per_step == 1
    assert measured.decode_steps == measured.deliveries == 11 * len(PROMPTS)
    assert measured.nodes_per_tree is None


def test_a_perfect_draft_shows(tiny):
    tree = SpeculationParams(max_nodes=9, max_depth=2)
    measured = EngineContender("speculative", pair(tiny, baseline_probe_share=0.0), tree).run(work(tokens=16))
    # One token with the prompt, then five times three: two drafted and the one behind them.
    assert measured.tokens_per_step == 3
    assert measured.decode_steps == 5 * len(PROMPTS)


def test_batch_many_are_in_flight(tiny):
    engine = tiny.engine(tiny.model(0))
    assert EngineContender("plain", engine).run(work(batch=2)).decode_steps == 11 * 2
    assert EngineContender("plain", engine).run(work(batch=4)).decode_steps == 11


def test_the_tree_asked_for_is_grown_under_load(tiny):
    engine = pair(tiny, max_tree_nodes=16, max_tree_depth=4, max_step_nodes=16)
    contender = EngineContender("5x1", engine, SpeculationParams(max_nodes=5, max_depth=1), seeds=True)
    measured = contender.run(work(batch=4, temperature=1.0))
    assert measured.nodes_per_tree == 5


def test_no_run_learns_from_the_one_before(tiny):
    """Sources remember answers, and every run has the same."""
    engine = tiny.engine(tiny.model(0), proposers=("suffix", "recycle"), baseline_probe_share=0.0)
    contender = EngineContender("suffix+recycle", engine)
    first, second = (contender.run(work(tokens=24)) for _ in range(2))
    assert first.drafts == second.drafts > 0
    assert first.deliveries == second.deliveries


def test_too_short_a_context_is_no_figure(tiny):
    engine = tiny.engine(tiny.model(0), max_model_len=10)
    contender = EngineContender("plain", engine)
    with pytest.raises(BenchError, match="24 tokens came"):
        contender.run(work(tokens=12))
    assert contender.run(work(tokens=6)).tokens == 6 * len(PROMPTS)


def test_a_failed_run_leaves_the_engine_idle(tiny):
    engine = tiny.engine(tiny.model(0))
    contender = EngineContender("plain", engine)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        contender.run(work(batch=2, prompts=(PROMPTS[0], (tiny.vocabulary,))))
    assert not engine.has_work
    assert contender.run(work()).tokens == 12 * len(PROMPTS)


def test_a_failed_request_is_no_figure(tiny, monkeypatch):
    engine = tiny.engine(tiny.model(0))

    def fail(items):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(engine._runner, "run", fail)
    with pytest.raises(BenchError, match=r"0 tokens came instead of all: .*RuntimeError"):
        EngineContender("plain", engine).run(work())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_transformers_goes_on_after_eos(tiny, temperature):
    model = tiny.model(0)
    model.generation_config.eos_token_id = list(range(tiny.vocabulary))
    measured = TransformersContender(model).run(work(temperature=temperature))
    assert measured.tokens == 12 * len(PROMPTS)
    assert measured.decoded_tokens == measured.decode_steps == 11 * len(PROMPTS)
    assert measured.tokens_per_step == 1
    assert 0 < sum(measured.first_token_seconds) + measured.decode_seconds < measured.seconds


def test_transformers_samples_from_the_whole_law(tiny, monkeypatch):
    """Not from the model's own top-k, which would be another task than ours."""
    model = tiny.model(0)
    model.generation_config.top_k = 1
    contender = TransformersContender(model)
    texts = set()
    generate = model.generate

    def record(*arguments, **keywords):
        output = generate(*arguments, **keywords)
        texts.add(tuple(output[0].tolist()))
        return output

    monkeypatch.setattr(model, "generate", record)
    torch.manual_seed(0)
    contender.run(work(temperature=1.0, prompts=PROMPTS[:1] * 4))
    assert len(texts) > 1


def test_transformers_is_measured_alone(tiny):
    contender = TransformersContender(tiny.model(0))
    assert contender.takes(work(batch=1))
    assert not contender.takes(work(batch=2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafted", [False, True])
def test_transformers_speculates_with_a_draft_or_with_the_text(tiny, temperature, drafted):
    plain = TransformersContender(tiny.model(0))
    contender = plain.assisted(tiny.model(0) if drafted else None)
    repetitive = tuple((5, 6, 7, 8, 9) * 6 for _ in range(2))
    measured = contender.run(work(temperature=temperature, tokens=24, prompts=repetitive))
    assert measured.tokens == 2 * 24
    assert measured.decoded_tokens == 2 * 23
    assert measured.deliveries == len(measured.gap_seconds) <= 2 * 23
    if drafted and temperature == 0:  # the model drafts for itself
        assert (measured.tokens_per_step or 0) > 1.5


@pytest.mark.parametrize("mode", [SpeculationMode.AUTO, SpeculationMode.FIXED, SpeculationMode.OFF])
def test_what_is_simulated_is_near_what_is_measured(tiny, mode):
    """The tokens of a step are the same in both; times of tiny models are noise, so the bounds are wide."""
    engine = pair(tiny, max_step_nodes=64)
    wanted = SpeculationParams(mode=mode)
    contender = EngineContender("speculative", engine, wanted, simulates=True)
    contender.run(work(batch=2, tokens=40))
    measured = contender.run(work(batch=2, tokens=40))
    assert measured.record.num_trees == measured.drafts
    assert measured.decode_tokens == 39 * len(PROMPTS)
    ratio = measured.simulated_over_measured
    assert ratio is not None
    assert 0.3 < ratio < 3
    assert pool([measured, measured]).simulated_over_measured == pytest.approx(ratio)
    assert EngineContender("speculative", engine, wanted).run(work(batch=2)).simulated is None
