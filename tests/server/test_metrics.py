"""The Prometheus metrics: names, values, and what must not be there."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from resispec.engine.outputs import (
    EngineInfo,
    FinishedStats,
    FinishReason,
    RequestMetrics,
    SpeculationMetrics,
    SpeculationStats,
    StepStats,
    Usage,
)
from resispec.server.metrics import Metrics
from resispec.server.report import metrics_body

TIMES = RequestMetrics(1.0, 2.0, 3.0, 40.0, 43.0, 1.0, 500.0, 0)
STATS = StepStats(
    num_running=3,
    num_waiting=2,
    kv_usage_target=0.5,
    kv_usage_draft=0.25,
    prompt_tokens=7,
    generation_tokens=4,
    iteration_tokens=30,
    prefix_cache_queries=10,
    prefix_cache_hits=6,
    num_preemptions=1,
    time_to_first_token=(0.003,),
    inter_token_latency=(0.0012, 0.002),
    finished=(
        FinishedStats(FinishReason.STOP, Usage(2, 3), TIMES),
        FinishedStats(FinishReason.ERROR, Usage(2, 3), TIMES),
    ),
    speculation=(
        SpeculationStats(
            verifier="resispec",
            exact=True,
            num_drafts=2,
            num_draft_tokens=9,
            accepted=(2, 0),
            tree_nodes=(5, 4),
            accepted_by_depth=(1, 1),
            proposed_by_depth=(2, 2),
            accepted_by_child=(1, 1),
        ),
    ),
    speculation_off=(("disabled", 1),),
    residual_underflow=1,
    phase_seconds=(("draft", 0.001), ("verify", 0.01)),
)


@pytest.fixture
def metrics(engine) -> Metrics:
    info: EngineInfo = engine.info
    return Metrics(info, "m", "1.0")


def samples(metrics: Metrics) -> dict[str, float]:
    text, _ = metrics.render("")
    return {
        sample.name
        + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items()) if key != "le")
        + (f",le={sample.labels['le']}" if "le" in sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_step_is_counted(metrics):
    metrics.observe_step(STATS)
    metrics.observe_step(STATS)
    got = samples(metrics)
    expected = {
        "num_requests_running,model=m": 3,
        "num_requests_waiting,model=m": 2,
        "kv_cache_usage_ratio,model=target": 0.5,
        "kv_cache_usage_ratio,model=draft": 0.25,
        "prompt_tokens_total,model=m": 14,
        "generation_tokens_total,model=m": 8,
        "iteration_tokens_sum,model=m": 60,
        "prefix_cache_queries_total,model=m": 20,
        "prefix_cache_hits_total,model=m": 12,
        "num_preemptions_total,model=m": 2,
        "request_success_total,finished_reason=stop,model=m": 2,
        "request_failure_total,model=m,reason=engine_error": 2,
        "time_to_first_token_seconds_count,model=m": 2,
        "inter_token_latency_seconds_count,model=m": 4,
        "inter_token_latency_seconds_bucket,model=m,le=0.0015": 2,
        "e2e_request_latency_seconds_sum,model=m": 4 * 0.043,
        "request_queue_time_seconds_sum,model=m": 4 * 0.001,
        "request_prefill_time_seconds_sum,model=m": 4 * 0.002,
        "request_decode_time_seconds_sum,model=m": 4 * 0.04,
        "step_seconds_sum,model=m,phase=verify": 0.02,
        "verifier_exact,model=m,verifier=resispec": 1,
        "spec_decode_num_drafts_total,model=m,verifier=resispec": 4,
        "spec_decode_num_draft_tokens_total,model=m,verifier=resispec": 18,
        "spec_decode_num_accepted_tokens_total,model=m,verifier=resispec": 4,
        "spec_decode_num_accepted_tokens_per_pos_total,model=m,position=1,verifier=resispec": 2,
        "spec_decode_num_drafts_per_pos_total,model=m,position=1,verifier=resispec": 4,
        "spec_decode_num_accepted_tokens_per_child_total,child=1,model=m,verifier=resispec": 2,
        "acceptance_rate,model=m,position=0,verifier=resispec": 0.5,
        "acceptance_length_sum,model=m,verifier=resispec": 8,
        "acceptance_length_bucket,model=m,verifier=resispec,le=1.0": 2,
        "tree_nodes_sum,model=m,verifier=resispec": 18,
        "speculation_off_total,model=m,reason=disabled": 2,
        "residual_underflow_total,model=m": 2,
    }
    for name, value in expected.items():
        assert got[f"resispec_{name}"] == pytest.approx(value), name


def test_an_inexact_verifier_is_labelled(metrics):
    [part] = STATS.speculation
    inexact = replace(part, verifier="resispec-paper", exact=False)
    metrics.observe_step(msgspec.structs.replace(STATS, speculation=(part, inexact)))
    got = samples(metrics)
    assert got["resispec_verifier_exact,model=m,verifier=resispec"] == 1
    assert got["resispec_verifier_exact,model=m,verifier=resispec-paper"] == 0
    speculation = SpeculationMetrics("resispec-paper", exact=False)
    body = metrics_body([replace(TIMES, speculation=speculation)], 3)
    assert json.loads(body.model_dump_json())["speculative_decoding"]["exact"] is False


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_no_created_series(metrics, accept):
    metrics.observe_step(STATS)
    text, content_type = metrics.render(accept)
    assert b"_created" not in text
    assert ("openmetrics" in content_type) == bool(accept)


def test_a_depth_at_which_nothing_was_kept_has_a_rate(metrics):
    [part] = STATS.speculation
    deeper = replace(part, accepted_by_depth=(1,), proposed_by_depth=(2, 2))
    metrics.observe_step(msgspec.structs.replace(STATS, speculation=(deeper,)))
    got = samples(metrics)
    assert got["resispec_acceptance_rate,model=m,position=0,verifier=resispec"] == 0.5
    assert got["resispec_acceptance_rate,model=m,position=1,verifier=resispec"] == 0
    name = "resispec_spec_decode_num_accepted_tokens_per_pos_total"
    assert got[f"{name},model=m,position=1,verifier=resispec"] == 0


def test_reasons_are_there_before_they_happen(metrics):
    """A rate over a counter that starts at 1 would miss the first event."""
    got = samples(metrics)
    for reason in ("bad_request", "engine_error", "internal_error", "not_found", "other", "too_large"):
        assert got[f"resispec_request_failure_total,model=m,reason={reason}"] == 0
    for reason in ("abort", "length", "stop"):
        assert got[f"resispec_request_success_total,finished_reason={reason},model=m"] == 0
    for reason in ("draining", "queue_full"):
        assert got[f"resispec_admission_rejections_total,model=m,reason={reason}"] == 0


def test_apps_do_not_share_a_registry(engine):
    one, other = Metrics(engine.info, "m", "1"), Metrics(engine.info, "m", "1")
    one.observe_step(STATS)
    assert samples(one)["resispec_prompt_tokens_total,model=m"] == 7
    assert samples(other)["resispec_prompt_tokens_total,model=m"] == 0


async def test_refusals_are_counted_and_the_route_answers(http, engine):
    engine.listeners[0](STATS)
    await http.post("/v1/completions", json={"prompt": ""})
    await http.get("/v1/nothing")
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    for reason in ("bad_request", "not_found", "engine_error"):
        assert f'resispec_request_failure_total{{model="tiny",reason="{reason}"}} 1.0' in response.text


async def test_clients_cannot_add_series(http):
    """Neither paths, models, methods nor verifiers that they make up become labels."""

    async def misbehave(word: str) -> None:
        await http.get(f"/{word}")
        await http.request(word.upper(), "/v1/completions")
        await http.post("/v1/completions", json={"prompt": "a", "model": word})
        await http.post("/v1/completions", json={"prompt": "a", "speculation": {"verifier": word}})
        await http.post("/v1/completions", json={"prompt": "a", "user": word, word: 1})

    async def count() -> int:
        return len((await http.get("/metrics")).text.splitlines())

    await misbehave("first")
    before = await count()
    for index in range(10):
        await misbehave(f"word{index}")
    assert await count() == before
