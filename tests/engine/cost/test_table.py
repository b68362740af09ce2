"""The table follows what is usual, forgets stalls, and survives a visit to the disk."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from resispec.engine.cost.surface import Surface
from resispec.engine.cost.table import CostFileError, CostTable


def table(scale: float = 1.0) -> CostTable:
    tokens, context = (1, 2, 4, 8, 16, 32, 64), (256, 1024, 4096, 16384)
    target = [[scale * (0.02 + 0.001 * t + 1e-7 * t * c) for c in context] for t in tokens]
    draft = [[scale * (0.002 + 0.0001 * t) for _ in context] for t in tokens]
    return CostTable(Surface(tokens, context, target), Surface(tokens, context, draft))


def test_a_real_change_is_followed_within_some_dozens_of_steps() -> None:
    costs = table()
    for _ in range(60):
        costs.observe_target(5, 300, 0.060)
    assert costs.target_seconds(5, 300) == pytest.approx(0.060, rel=0.02)
    for _ in range(60):
        costs.observe_target(5, 300, 0.020)
    assert costs.target_seconds(5, 300) == pytest.approx(0.020, rel=0.02)


def test_a_stall_hardly_moves_it() -> None:
    costs = table()
    before = costs.target_seconds(8, 1024)
    costs.observe_target(8, 1024, 30.0)
    assert costs.target_seconds(8, 1024) == before, "the first forward of so many tokens makes kernels"
    costs.observe_target(8, 1024, 30.0)
    assert before < costs.target_seconds(8, 1024) < 1.08 * before
    for _ in range(30):
        costs.observe_target(8, 1024, before)
    assert costs.target_seconds(8, 1024) == pytest.approx(before, rel=0.01)


def test_noise_with_stalls_in_it_leaves_the_usual_value() -> None:
    costs, draws = table(), random.Random(3)
    for _ in range(1000):
        usual = 0.040 * draws.uniform(0.9, 1.1)
        costs.observe_target(4, 256, 1.0 if draws.random() < 0.05 else usual)
    assert costs.target_seconds(4, 256) == pytest.approx(0.040, rel=0.15)


def test_what_is_seldom_met_keeps_up_with_a_slower_machine() -> None:
    costs, slower = table(), table(2.0)
    draws = random.Random(4)
    for _ in range(400):
        tokens, context = draws.choice([1, 3, 5, 9]), draws.choice([300, 700, 1500])
        costs.observe_target(tokens, context, slower.target_seconds(tokens, context))
    for tokens in (1, 5, 9):
        assert costs.target_seconds(tokens, 700) == pytest.approx(
            slower.target_seconds(tokens, 700), rel=0.05
        )
    assert costs.target_seconds(64, 4096) > 1.2 * table().target_seconds(64, 4096)
    assert costs.draft_seconds(4, 700) > 1.2 * table().draft_seconds(4, 700)


def test_the_draft_is_learned_beside_the_target() -> None:
    costs = table()
    for _ in range(200):
        costs.observe_target(5, 300, table().target_seconds(5, 300))
        costs.observe_draft(4, 300, 0.010)
    assert costs.draft_seconds(4, 300) == pytest.approx(0.010, rel=0.03)
    assert costs.target_seconds(5, 300) == pytest.approx(table().target_seconds(5, 300), rel=0.03)


def test_without_a_draft_drafting_costs_nothing() -> None:
    costs = CostTable(Surface((1,), (1,), [[0.1]]))
    costs.observe_draft(1, 1, 5.0)
    assert costs.draft_seconds(8, 100) == 0.0


def test_a_guess_takes_its_first_observation_for_true() -> None:
    costs = CostTable.guess(draft=True)
    costs.observe_target(1, 256, 2.0)
    assert costs.target_seconds(1, 256) == pytest.approx(2.0)
    assert costs.draft_seconds(1, 256) > 0.1


def test_the_pace_is_set_by_one_forward() -> None:
    costs = table()
    costs.set_pace(1, 256, 2 * costs.target_seconds(1, 256))
    assert costs.target_seconds(16, 4096) == pytest.approx(2 * table().target_seconds(16, 4096))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_teaches_nothing(seconds: float) -> None:
    costs = table()
    costs.observe_target(4, 256, seconds)
    costs.observe_target(0, 256, 0.1)
    assert costs.target_seconds(4, 256) == table().target_seconds(4, 256)


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    costs = table()
    for _ in range(20):
        costs.observe_target(5, 300, 0.05)
    path = tmp_path / "new folder" / "costs.json"
    costs.save(path, "a key")
    again = CostTable.load(path, "a key")
    assert again.target_seconds(5, 300) == pytest.approx(costs.target_seconds(5, 300))
    assert again.draft_seconds(5, 300) == pytest.approx(costs.draft_seconds(5, 300))
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]
    CostTable(Surface((1,), (1,), [[0.1]])).save(path, "a key")
    assert CostTable.load(path, "a key").draft_seconds(1, 1) == 0.0


def test_files_that_hold_no_table_are_named_so(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    table().save(path, "a key")
    whole = path.read_bytes()
    with pytest.raises(CostFileError, match="something else"):
        CostTable.load(path, "another key")
    for damaged in (whole[:50], b"", b"\xff\xfe", b"{}", whole.replace(b"0.02", b"-0.02", 1), b"[1]"):
        path.write_bytes(damaged)
        with pytest.raises(CostFileError):
            CostTable.load(path, "a key")
    with pytest.raises(FileNotFoundError):
        CostTable.load(tmp_path / "none.json", "a key")


def test_an_update_is_cheap() -> None:
    costs, draws = table(), random.Random(5)
    seen = [(draws.randint(1, 64), draws.randint(1, 16000), draws.uniform(0.01, 0.1)) for _ in range(2000)]
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for tokens, context, seconds in seen:
            costs.observe_target(tokens, context, seconds)
        best = min(best, (time.perf_counter() - began) / len(seen))
    assert best < 100e-6  # some 10 us on an idle machine
