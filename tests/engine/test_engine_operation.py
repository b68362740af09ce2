"""How the engine treats many requests: order, aborts, stops inside a block, figures that add up."""

from __future__ import annotations

from typing import Any

import pytest

from resispec.engine.budget.base import TreeBudget
from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.config import ConfigError, EngineConfig
from resispec.engine.outputs import FinishReason
from resispec.engine.request import (
    Request,
    RequestError,
    SamplingParams,
    SpeculationMode,
    SpeculationParams,
)
from resispec.engine.tree import plan_shape


def same_draft(tiny: Any) -> LoadedDraft:
    """The target itself: nearly every candidate is kept, so blocks are long."""
    return LoadedDraft(256, model=tiny.model(0))


def request(name: str, *, prompt: tuple[int, ...] = (5, 6, 7), **sampling: Any) -> Request:
    wanted = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True, **sampling}
    return Request(name, prompt, SamplingParams(**wanted))


def test_abort_frees_everything_at_once(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), same_draft(tiny))
    for name in "abcd":
        engine.add(request(name, max_tokens=100))
    engine.step()
    engine.step()
    assert engine.kv_usage > 0
    for name in "abcd":
        engine.abort(name)
    engine.abort("never there")
    assert engine.kv_usage == 0
    engine.check_integrity()
    result = engine.step()
    assert [output.finish_reason for output in result.outputs] == [FinishReason.ABORT] * 4
    assert [stats.finish_reason for stats in result.stats.finished] == [FinishReason.ABORT] * 4
    assert not engine.has_work
    engine.add(request("e"))
    with pytest.raises(RequestError, match="already running"):
        engine.add(request("e"))


def test_an_abort_leaves_the_others_alone(tiny: Any) -> None:
    expected = tiny.run(tiny.engine(tiny.model(0)), [request("b", prompt=(9, 8))]).tokens["b"]
    engine = tiny.engine(tiny.model(0), same_draft(tiny))
    engine.add(request("a"))
    engine.add(request("b", prompt=(9, 8)))
    tokens = [t for o in engine.step().outputs if o.request_id == "b" for t in o.token_ids]
    engine.abort("a")
    while engine.has_work:
        tokens += [t for o in engine.step().outputs if o.request_id == "b" for t in o.token_ids]
    assert tokens == expected


def test_priority_goes_first_then_arrival(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), max_num_seqs=1)
    order = [("late", 0, 3.0), ("first", 0, 1.0), ("urgent", -1, 9.0), ("second", 0, 2.0), ("idle", 5, 0.0)]
    for name, priority, arrival in order:
        engine.add(Request(name, (3,), SamplingParams(max_tokens=2), priority=priority, arrival_time=arrival))
    finished: list[str] = []
    while engine.has_work:
        finished += [output.request_id for output in engine.step().outputs if output.finish_reason]
    assert finished == ["urgent", "first", "second", "late", "idle"]


@pytest.mark.parametrize("position", range(2, 9))
def test_a_stop_id_inside_a_block_ends_the_answer_there(tiny: Any, position: int) -> None:
    plain = tiny.run(tiny.engine(tiny.model(0)), [request("a")]).tokens["a"]
    stop = plain[position]
    kept = plain.index(stop) + 1
    ran = tiny.run(tiny.engine(tiny.model(0), same_draft(tiny)), [request("a", stop_token_ids=(stop,))])
    last = ran.last["a"]
    assert ran.tokens["a"] == plain[:kept]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)
    assert last.usage.completion_tokens == kept
    assert f"t{stop}" not in ran.text["a"].split()
    accepted = sum(sum(part.accepted) for stats in ran.stats for part in stats.speculation)
    assert accepted == last.metrics.speculation.num_accepted_draft_tokens <= kept


@pytest.mark.parametrize("position", range(2, 9))
def test_a_stop_string_inside_a_block_ends_the_answer_there(tiny: Any, position: int) -> None:
    plain = tiny.run(tiny.engine(tiny.model(0)), [request("a")])
    words = plain.text["a"].split()
    stop = f"{words[position]} {words[position + 1]}"
    ran = tiny.run(tiny.engine(tiny.model(0), same_draft(tiny)), [request("a", stop=(stop,))])
    cut = plain.text["a"].index(stop)
    assert ran.text["a"] == plain.text["a"][:cut]
    assert ran.last["a"].stop_reason == stop
    assert ran.last["a"].usage.completion_tokens == len(ran.tokens["a"]) == len(words[: position + 2])


@pytest.mark.parametrize("limit", range(1, 9))
def test_max_tokens_is_never_overshot(tiny: Any, limit: int) -> None:
    plain = tiny.run(tiny.engine(tiny.model(0)), [request("a")]).tokens["a"]
    ran = tiny.run(tiny.engine(tiny.model(0), same_draft(tiny)), [request("a", max_tokens=limit)])
    assert ran.tokens["a"] == plain[:limit]
    assert ran.last["a"].finish_reason is FinishReason.LENGTH


def test_figures_add_up(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), same_draft(tiny), baseline_probe_share=0.0)
    requests = [request(str(i), prompt=(i + 2, i + 3), max_tokens=11 + i) for i in range(6)]
    ran = tiny.run(engine, requests)
    delivered = sum(len(tokens) for tokens in ran.tokens.values())
    assert sum(stats.generation_tokens for stats in ran.stats) == delivered
    assert sum(stats.prompt_tokens for stats in ran.stats) == 12
    assert sum(len(stats.time_to_first_token) for stats in ran.stats) == 6
    assert sum(len(stats.inter_token_latency) for stats in ran.stats) == delivered - 6
    assert sum(len(stats.finished) for stats in ran.stats) == 6
    for output in ran.last.values():
        figures = output.metrics.speculation
        kept = figures.num_accepted_draft_tokens
        # The first token is the prompt's; the last one may come without a tree, when one is all that is left.
        assert output.usage.completion_tokens - (1 + figures.num_spec_steps + kept) in (0, 1)
        assert sum(figures.accepted_by_depth) == sum(figures.accepted_by_child) == kept
        assert sum(count * index for index, count in enumerate(figures.acceptance_histogram)) == kept
        assert sum(figures.acceptance_histogram) == figures.num_spec_steps
        assert figures.exact
        assert figures.verifier == "resispec"
        assert 0 < figures.draft_acceptance_rate <= 1


def test_a_request_without_speculation_costs_no_drafting(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), same_draft(tiny))
    off = Request(
        "a", (5, 6), SamplingParams(max_tokens=10, ignore_eos=True), SpeculationParams(enabled=False)
    )
    ran = tiny.run(engine, [off])
    assert all(not stats.speculation for stats in ran.stats)
    assert sum(dict(stats.speculation_off).get("request", 0) for stats in ran.stats) == 9
    assert max(dict(stats.phase_seconds)["draft"] for stats in ran.stats) < 1e-3


def test_every_phase_of_a_step_is_timed(tiny: Any) -> None:
    ran = tiny.run(tiny.engine(tiny.model(0), same_draft(tiny)), [request("a", max_tokens=30)])
    for stats in ran.stats:
        phases = dict(stats.phase_seconds)
        assert list(phases) == ["schedule", "draft", "verify", "sample", "commit", "detokenise"]
        assert min(phases.values()) >= 0
        assert (phases["detokenise"] > 0) == (stats.generation_tokens > 0)


def test_a_step_shares_its_candidates(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), same_draft(tiny), max_step_nodes=16, max_tree_nodes=12)
    alone = tiny.run(engine, [request("x")])
    assert max(max(p.tree_nodes) for s in alone.stats for p in s.speculation) == 12
    ran = tiny.run(engine, [request(str(i), prompt=(i + 2,)) for i in range(10)])
    assert max(sum(p.num_draft_tokens for p in s.speculation) for s in ran.stats) <= 16


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 128)}, "prompt"),
        ({"prompt": (1, -1)}, "prompt"),
        ({"prompt": tuple([3] * 256)}, "prompt"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": ((500, 1.0),)}, "logit_bias"),
        ({"stop_token_ids": (500,)}, "stop_token_ids"),
    ],
)
def test_bad_requests_are_refused_by_name(tiny: Any, changes: dict[str, Any], param: str) -> None:
    engine = tiny.engine(tiny.model(0))
    with pytest.raises(RequestError) as caught:
        engine.add(request("a", **changes))
    assert caught.value.param == param
    assert not engine.has_work


@pytest.mark.parametrize(
    ("speculation", "param"),
    [
        (SpeculationParams(verifier="nonsense"), "speculation.verifier"),
        (SpeculationParams(max_nodes=0), "speculation.tree.max_nodes"),
        (SpeculationParams(max_depth=0), "speculation.tree.max_depth"),
    ],
)
def test_bad_speculation_is_refused(tiny: Any, speculation: SpeculationParams, param: str) -> None:
    engine = tiny.engine(tiny.model(0), same_draft(tiny))
    with pytest.raises(RequestError) as caught:
        engine.add(Request("a", (3,), speculation=speculation))
    assert caught.value.param == param


def test_a_tree_beyond_the_limits_is_cut_and_that_is_said(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), same_draft(tiny), max_tree_nodes=4, max_tree_depth=2)
    wanted = SpeculationParams(max_nodes=1000, max_depth=2)
    ran = tiny.run(engine, [Request("a", (3, 4), SamplingParams(max_tokens=9, ignore_eos=True), wanted)])
    speculation = ran.last["a"].metrics.speculation
    assert speculation.notes == ("tree.max_nodes: 1000 was asked for, 4 is this server's limit",)
    assert 0 < speculation.num_draft_tokens <= 4 * speculation.num_spec_steps


@pytest.mark.parametrize(
    ("config", "wanted", "tree"),
    [
        ({}, {}, (4, 2)),
        ({}, {"max_nodes": 9, "max_depth": 3}, (9, 3)),
        ({}, {"max_nodes": 99}, (16, 2)),
        ({"max_tree_nodes": 6}, {}, (6, 2)),
        ({"max_tree_nodes": 6, "max_tree_depth": 1}, {"max_depth": 4}, (6, 1)),
    ],
)
def test_limits_are_not_the_fixed_tree(
    tiny: Any, config: dict[str, Any], wanted: dict[str, Any], tree: tuple[int, int]
) -> None:
    loaded = LoadedTarget(tiny.model(0), tiny.tokenizer(), "tiny", 256, tiny.vocabulary, (tiny.eos,), {})
    settings = EngineConfig("tiny", draft="tiny", max_step_nodes=64, **config)
    engine = assemble(settings, loaded, same_draft(tiny))
    assert engine.info.speculation is SpeculationMode.AUTO
    fixed = SpeculationParams(mode=SpeculationMode.FIXED, **wanted)
    assert engine.tree_limits(fixed)[1] == TreeBudget(*tree)
    most = TreeBudget(config.get("max_tree_nodes", 16), config.get("max_tree_depth", 4))
    assert engine.tree_limits(SpeculationParams()) == (SpeculationMode.AUTO, most)
    ran = tiny.run(engine, [Request("a", (3, 4), SamplingParams(temperature=0.0, max_tokens=20), fixed)])
    grown = max(size for step in ran.stats for part in step.speculation for size in part.tree_nodes)
    assert grown == plan_shape(*tree, greedy=True).num_nodes


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"kv_memory": 1000}, "kv_memory"),
        ({"max_model_len": 257}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"verifier": "nonsense"}, "verifier"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(tiny: Any, config: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny.engine(tiny.model(0), same_draft(tiny), **config)
    assert caught.value.setting == setting


def test_a_tree_as_deep_as_a_sliding_window_is_wide_is_refused(tiny: Any) -> None:
    model = tiny.model(0, "mistral", sliding_window=12)
    with pytest.raises(ConfigError, match="sliding window of 12") as caught:
        tiny.engine(model, same_draft(tiny), max_tree_depth=12)
    assert caught.value.setting == "max_tree_depth"
    tiny.engine(tiny.model(0, "mistral", sliding_window=12), same_draft(tiny), max_tree_depth=11)


def test_a_small_memory_shortens_the_context_and_says_so(tiny: Any) -> None:
    per_row = tiny.engine(tiny.model(0)).info.kv_bytes_per_row
    engine = tiny.engine(tiny.model(0), kv_memory=per_row * 160)
    assert engine.info.max_model_len < 256
    assert "cut" in engine.info.notes[0]
    ran = tiny.run(engine, [request("a", max_tokens=None)])
    assert len(ran.tokens["a"]) + 3 == engine.info.max_model_len
