"""Where an engine's table comes from, and what the engine's steps teach it."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from resispec.engine.budget.costs import MeasuredCosts
from resispec.engine.build import LoadedDraft, LoadedTarget, assemble
from resispec.engine.config import EngineConfig
from resispec.engine.cost.feed import draft_levels, feed_draft
from resispec.engine.cost.measure import Limits, measure_costs
from resispec.engine.cost.start import cached_costs, cost_key
from resispec.engine.cost.surface import Surface
from resispec.engine.cost.table import PLAIN, CostTable
from resispec.engine.request import Request, SamplingParams
from resispec.engine.tree import Level, TreeShape


def constant(seconds: float) -> CostTable:
    return CostTable(Surface((1,), (1,), [[seconds]]), Surface((1,), (1,), [[seconds / 10]]))


def engine_at(tiny, folder: Path | None, **config):
    target = LoadedTarget(tiny.model(0), tiny.tokenizer(), "tiny", 256, 128, (1,), {})
    draft = LoadedDraft(256, model=tiny.model(1))
    settings = EngineConfig("tiny", draft="tiny", max_tree_nodes=6, max_tree_depth=2, **config)
    return assemble(settings, target, draft, cost_folder=folder)


def test_a_table_is_measured_once_and_then_found(tmp_path: Path) -> None:
    path, measured, adjusted = tmp_path / "a.json", [], []

    def measure() -> CostTable:
        measured.append(1)
        return constant(0.5)

    for _ in range(2):
        table = cached_costs(path, "key", measure, lambda _: adjusted.append(1))
        assert table.target_seconds(1, 1) == 0.5
    assert len(measured) == len(adjusted) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1}'])
def test_a_corrupt_file_is_replaced_with_one_line(tmp_path: Path, content: bytes, caplog) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        cached_costs(path, "key", lambda: constant(0.5), lambda _: None)
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert CostTable.load(path, "key").target_seconds(1, 1) == 0.5


def test_a_foreign_file_is_replaced(tmp_path: Path, caplog) -> None:
    path = tmp_path / "a.json"
    constant(9.0).save(path, "other")
    table = cached_costs(path, "key", lambda: constant(0.5), lambda _: None)
    assert table.target_seconds(1, 1) == 0.5
    assert "something else" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_line(tmp_path: Path, caplog) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    table = cached_costs(blocked / "a.json", "key", lambda: constant(0.5), lambda _: None)
    assert table.target_seconds(1, 1) == 0.5
    assert len(caplog.records) in (1, 2)  # reading fails too, on some systems in another way


def test_a_key_tells_settings_and_architectures_apart() -> None:
    cpu = torch.device("cpu")
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
    config = EngineConfig("a")
    keys = {
        cost_key(config, cpu, [small]),
        cost_key(config, cpu, [small]),
        cost_key(config, cpu, [large]),
        cost_key(config, cpu, [small, large]),
        cost_key(EngineConfig("a", max_num_seqs=3), cpu, [small]),
    }
    assert len(keys) == 4


def test_an_engine_measures_its_pair_and_leaves_no_trace_in_the_memory(tiny, tmp_path: Path) -> None:
    engine = engine_at(tiny, tmp_path)
    costs = engine._runner.costs
    (file,) = tmp_path.iterdir()
    for tokens, context in ((1, 10), (16, 256), (64, 4096)):
        assert 0 < costs.target_seconds(tokens, context) < 5
        assert 0 < costs.draft_seconds(tokens, context) < 5
    for memory in engine._runner._memories:
        assert not memory.keys.any()
        assert not memory.values.any()
    written = file.stat().st_mtime_ns
    assert engine_at(tiny, tmp_path)._runner.costs.target_seconds(1, 256) > 0
    assert file.stat().st_mtime_ns == written


def test_short_memories_and_contexts_are_measured_too(tiny) -> None:
    engine = engine_at(tiny, None, max_model_len=24, max_num_seqs=1)
    runner = engine._runner
    assert engine.info.kv_rows < 64
    for rows, positions in ((engine.info.kv_rows, 256), (16, 16), (16, 5)):
        limits = Limits(rows, 64, 1, positions, positions)
        costs = measure_costs(runner._target, runner._proposer, limits, torch.device("cpu"))
        assert 0 < costs.target_seconds(1, 8) <= costs.target_seconds(64, 8)
        assert costs.draft_seconds(1, 8) > 0


def test_a_context_as_long_as_what_is_measured(tiny) -> None:
    runner = engine_at(tiny, None, max_num_seqs=1)._runner
    costs = measure_costs(runner._target, runner._proposer, Limits(256, 64, 1, 256, 256), torch.device("cpu"))
    assert costs.draft_seconds(1, 256) > 0


def test_a_budget_that_is_spent_leaves_the_rest_to_extrapolation(tiny, monkeypatch) -> None:
    monkeypatch.setattr("resispec.engine.cost.measure._BUDGET", 0.0)
    runner = engine_at(tiny, None)._runner
    limits = Limits(2048, 256, 8, 256, 256)
    costs = measure_costs(runner._target, runner._proposer, limits, torch.device("cpu"))
    assert costs.target_seconds(256, 256) == pytest.approx(costs.target_seconds(1, 256) * (1 + 255 / 32))


def test_steps_teach_the_table(tiny) -> None:
    engine = engine_at(tiny, None)
    guess = CostTable.guess(draft=True)
    engine.add(Request("a", (3, 4, 5), SamplingParams(max_tokens=40, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    costs = engine._runner.costs
    assert costs.target_seconds(1, 16) != guess.target_seconds(1, 16)
    ratio = costs.draft_seconds(2, 16) / costs.target_seconds(2, 16)
    assert ratio != pytest.approx(guess.draft_seconds(2, 16) / guess.target_seconds(2, 16))


def item(catch_up: int, root: int, shape: TreeShape | None) -> SimpleNamespace:
    return SimpleNamespace(catch_up=(0,) * catch_up, root=root, shape=shape)


def test_levels_are_counted_as_the_draft_runs_them() -> None:
    deep = TreeShape((Level(1, 1, 1), Level(2, 1, 0), Level(1, 0, 1)))
    flat = TreeShape((Level(1, 3, 1),))
    items = [item(3, 9, deep), item(1, 19, flat), item(5, 4, None)]
    assert draft_levels(items) == [(9, 10 + 20 + 5), (2, 10), (1, 10)]
    assert draft_levels([]) == []


def test_levels_that_were_timed_together_share_the_time() -> None:
    surface = Surface((1, 2), (1,), [[0.01], [0.03]])
    costs = CostTable(Surface((1,), (1,), [[1.0]]), surface)
    deep = TreeShape((Level(1, 2, 0), Level(2, 1, 0)))
    for _ in range(300):
        feed_draft(costs, [item(1, 0, deep)], 0.08)
    assert costs.draft_seconds(1, 1) == pytest.approx(0.02, rel=0.02)
    assert costs.draft_seconds(2, 1) == pytest.approx(0.06, rel=0.02)


def test_what_steps_teach_is_kept_for_the_next_start(tiny, tmp_path: Path) -> None:
    engine = engine_at(tiny, tmp_path)
    requests = [
        Request(name, (5, 6, 7), SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
        for name in "ab"
    ]
    (path,) = tmp_path.glob("*.json")
    measured = CostTable.load(path).learned
    assert measured is not None
    assert {(kind, magnitude) for kind, magnitude, _ in measured.factors} == {
        (-1, 1),
        (0, 1),
        (-1, 4),
        (0, 4),
    }
    while (learned := CostTable.load(path).learned) == measured:
        tiny.run(engine, requests)
    assert learned is not None
    assert learned.law != measured.law
    assert {key[:2] for key in measured.factors} < {key[:2] for key in learned.factors}, "two ran at a time"
    again = engine_at(tiny, tmp_path).controller.costs
    assert isinstance(again, MeasuredCosts)
    assert again.learned().law == pytest.approx(learned.law)
    for kind, magnitude, factor in learned.factors:
        kept = min(factor, 1.1) if kind == PLAIN else factor  # more was a busy machine
        assert again.whole_step(kind, 1 << (magnitude - 1)) == pytest.approx(kept)


def test_costs_that_cannot_be_kept_cost_a_line(tiny, tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("resispec.engine.cost.keep._FIRST_KEPT", 2)
    engine = engine_at(tiny, tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CostTable, "save", refuse)
    request = Request("a", (5, 6, 7), SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    with caplog.at_level(logging.WARNING):
        assert len(tiny.run(engine, [request]).tokens["a"]) == 8
    assert "No space left" in caplog.text
