"""Storms: many requests of every kind, coming and going at random, in too little memory.

Whatever else runs, a greedy request gives the plain model's text and a seeded one the text it gives alone;
after the storm nothing is left behind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.outputs import FinishReason, RequestOutput, StepStats
from resispec.engine.request import Request, SamplingParams, SpeculationMode, SpeculationParams
from resispec.engine.verifiers.table import VERIFIERS
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

NODES, DEPTH, CONTEXT = 9, 3, 96


@dataclass(frozen=True)
class Weather:
    """One storm: what the engine is, and how rough it gets."""

    seed: int
    draft: str  # none, model, head
    count: int = 45
    rows: int | None = None  # of KV memory; None: enough for all
    budget: int | None = None  # rows of a forward
    prefix_caching: bool = True
    abort_share: float = 0.2


STORMS = (
    Weather(1, "none", rows=160, budget=20),
    Weather(2, "model", rows=192),
    Weather(3, "head", rows=160, budget=60),
    Weather(4, "model", rows=256, prefix_caching=False, budget=60),
    Weather(5, "head", abort_share=0.5),
    Weather(6, "model", budget=200, abort_share=0.0),
)


def draft_of(tiny: Any, kind: str) -> LoadedDraft | None:
    if kind == "none":
        return None
    torch.manual_seed(3)
    if kind == "head":
        fingerprint = TargetFingerprint("tiny", 128, 32, "0", (0.0,))
        config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 100, fingerprint)
        module = HeadModule(config).requires_grad_(False).eval()
        return LoadedDraft(64, head=module, vocab_ids=torch.arange(20, 120))  # its context ends early
    model = tiny.model(0)
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape))
    return LoadedDraft(256, model=model)


def random_sampling(rng: random.Random) -> SamplingParams:
    def sometimes(share: float, value: Any, otherwise: Any) -> Any:
        return value if rng.random() < share else otherwise

    kind = rng.choice(["greedy", "seeded", "seeded", "free"])
    return SamplingParams(
        temperature=0.0 if kind == "greedy" else rng.choice([0.3, 1.0, 1.7]),
        seed=rng.randrange(2**64) if kind == "seeded" else None,
        top_k=sometimes(0.3, rng.randrange(1, 40), 0),
        top_p=sometimes(0.3, rng.uniform(0.1, 1.0), 1.0),
        min_p=sometimes(0.2, rng.uniform(0.0, 0.3), 0.0),
        presence_penalty=sometimes(0.2, rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(0.2, rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(0.2, rng.uniform(0.5, 2), 1.0),
        logit_bias=sometimes(0.2, tuple((rng.randrange(128), rng.uniform(-100, 9)) for _ in range(9)), ()),
        max_tokens=rng.choice([1, 2, 9, 25, None]),
        min_tokens=sometimes(0.2, rng.randrange(1, 12), 0),
        stop=sometimes(0.3, tuple(f"t{rng.randrange(128)} t{rng.randrange(12)}" for _ in range(3)), ()),
        stop_token_ids=sometimes(0.2, tuple(rng.randrange(128) for _ in range(2)), ()),
        include_stop_str_in_output=rng.random() < 0.5,
        ignore_eos=rng.random() < 0.5,
    )


def random_speculation(rng: random.Random) -> SpeculationParams:
    if rng.random() < 0.2:
        return SpeculationParams(enabled=False)
    return SpeculationParams(
        verifier=rng.choice([None, *sorted(VERIFIERS)]),
        max_nodes=rng.choice([None, 1, 4, NODES]),
        max_depth=rng.choice([None, 1, DEPTH]),
        mode=rng.choice([None, *SpeculationMode]),
    )


def random_requests(weather: Weather) -> list[Request]:
    """Prompts share stems, so that they meet in the prefix cache."""
    rng = random.Random(weather.seed)
    stems = [[rng.randrange(2, 128) for _ in range(60)] for _ in range(4)]
    requests = []
    for index in range(weather.count):
        prompt = rng.choice(stems)[: rng.choice([0, 1, 16, 17, 33, 60])]
        prompt = prompt + [rng.randrange(2, 128) for _ in range(rng.randrange(0 if prompt else 1, 12))]
        requests.append(
            Request(
                f"{weather.seed}/{index}",
                tuple(prompt),
                random_sampling(rng),
                random_speculation(rng),
                priority=rng.choice([0, 0, 0, -1, 1]),
                cache_salt=rng.choice(["", "", "a"]),
            )
        )
    return requests


def engine_of(tiny: Any, weather: Weather, **changes: Any) -> Any:
    size = {"max_tree_nodes": NODES, "max_tree_depth": DEPTH, "max_model_len": CONTEXT, "max_num_seqs": 6}
    settings = {
        **size,
        "kv_memory": 1 << 22,
        "allow_inexact": True,
        "max_num_batched_tokens": weather.budget,
        "prefix_caching": weather.prefix_caching,
        **changes,
    }
    engine = tiny.engine(tiny.model(0), draft_of(tiny, weather.draft), **settings)
    if weather.rows is None or changes:
        return engine
    settings["kv_memory"] = engine.info.kv_bytes_per_row * weather.rows
    return tiny.engine(tiny.model(0), draft_of(tiny, weather.draft), **settings)


@dataclass
class Log:
    """What reached one client."""

    tokens: list[int]
    text: str = ""
    last: RequestOutput | None = None


def run_storm(
    engine: Any, weather: Weather, requests: list[Request]
) -> tuple[dict[str, Log], list[StepStats]]:
    """Requests come a few at a time, and some leave before they are answered."""
    rng = random.Random(weather.seed + 1000)
    logs: dict[str, Log] = {}
    stats: list[StepStats] = []
    doomed = {r.request_id for r in requests if rng.random() < weather.abort_share}
    coming = list(reversed(requests))
    for _ in range(20_000):
        for _ in range(rng.choice([0, 0, 1, 5])):
            if coming:
                request = coming.pop()
                logs[request.request_id] = Log([])
                # As if it had waited its turn: order follows arrival, not the clock of a previous storm.
                engine.add(replace(request, arrival_time=float(len(logs))))
        for request_id in doomed & logs.keys():
            if rng.random() < 0.05:
                engine.abort(request_id)
        if not engine.has_work:
            if not coming:
                return logs, stats
            continue
        result = engine.step()
        engine.check_integrity()
        stats.append(result.stats)
        for output in result.outputs:
            log = logs[output.request_id]
            assert log.last is None, "news of a request that had ended"
            log.tokens += output.token_ids
            log.text += output.text
            if output.finish_reason is not None:
                log.last = output
    raise AssertionError("the storm does not end")


def check_figures(engine: Any, request: Request, log: Log) -> None:
    """What an answer says of itself is what was delivered."""
    assert log.last is not None, "never finished"
    assert log.last.metrics is not None
    assert log.last.finish_reason is not FinishReason.ERROR, log.last.error
    assert log.last.usage.completion_tokens == len(log.tokens)
    assert log.last.usage.prompt_tokens == len(request.prompt_token_ids)
    assert len(log.tokens) <= (request.sampling.max_tokens or CONTEXT)
    speculation = log.last.metrics.speculation
    off = not request.speculation.enabled or request.speculation.mode is SpeculationMode.OFF
    if off or engine.info.draft is None:
        assert speculation is None
        return
    assert speculation is not None
    accepted = speculation.num_accepted_draft_tokens
    histogram = speculation.acceptance_histogram
    assert sum(histogram) == speculation.num_spec_steps
    assert sum(kept * steps for kept, steps in enumerate(histogram)) == accepted
    assert sum(speculation.accepted_by_depth) == sum(speculation.accepted_by_child) == accepted
    assert sum(speculation.proposed_by_depth) == speculation.num_spec_tokens >= accepted
    assert accepted <= len(log.tokens)
    nodes = request.speculation.max_nodes or NODES
    assert speculation.num_draft_tokens <= nodes * speculation.num_spec_steps


@pytest.mark.parametrize("weather", STORMS, ids=lambda weather: f"{weather.draft}-{weather.seed}")
def test_a_storm_changes_no_text_and_leaves_nothing(tiny: Any, weather: Weather) -> None:
    requests = random_requests(weather)
    engine = engine_of(tiny, weather)
    logs, stats = run_storm(engine, weather, requests)

    assert engine.kv_usage == 0.0
    assert not engine.has_work
    assert stats[-1].num_running == stats[-1].num_waiting == 0
    assert sum(len(log.tokens) for log in logs.values()) == sum(step.generation_tokens for step in stats)
    assert len(requests) == sum(len(step.finished) for step in stats)
    accepted = [log.last.metrics.speculation for log in logs.values() if log.last and log.last.metrics]
    by_request = sum(part.num_accepted_draft_tokens for part in accepted if part)
    assert by_request == sum(sum(part.accepted) for step in stats for part in step.speculation)
    if weather.budget:
        assert max(step.iteration_tokens for step in stats) <= weather.budget
    if weather.rows:
        assert sum(step.num_preemptions for step in stats) > 0, "calm: nobody was preempted"

    plain = engine_of(tiny, replace(weather, draft="none"), max_num_seqs=1, prefix_caching=False)
    alone = engine_of(tiny, weather, max_num_seqs=1, prefix_caching=False, max_num_batched_tokens=None)
    compared = 0
    for request in requests:
        log = logs[request.request_id]
        check_figures(engine, request, log)
        greedy = request.sampling.temperature == 0
        if not greedy and request.sampling.seed is None:
            continue
        calm = tiny.run(
            plain if greedy else alone,
            [replace(request, speculation=SpeculationParams()) if greedy else request],
        )
        tokens, text = calm.tokens[request.request_id], calm.text[request.request_id]
        assert log.last is not None
        if log.last.finish_reason is FinishReason.ABORT:
            assert tokens[: len(log.tokens)] == log.tokens
            assert text.startswith(log.text)
        else:
            assert (log.tokens, log.text) == (tokens, text), request
            assert log.last.finish_reason == calm.last[request.request_id].finish_reason
            assert log.last.stop_reason == calm.last[request.request_id].stop_reason
        compared += 1
    assert compared > 15
