"""What was kept, by shape: rates come back out of it, and it survives a file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from resispec.engine.budget.acceptance import kept_share, level_views
from resispec.engine.budget.record import AcceptanceRecord
from resispec.engine.config import ConfigError
from resispec.engine.tree import plan_shape

RATES = (0.6, 0.45, 0.3)


def drawn(greedy: bool, trees: int = 3000) -> AcceptanceRecord:
    """Trees of several shapes, kept as the model of acceptance says."""
    rng, record = random.Random(5), AcceptanceRecord()
    shapes = [plan_shape(nodes, depth, greedy=greedy) for nodes, depth in ((2, 1), (4, 2), (8, 3))]
    for index in range(trees):
        shape = shapes[index % len(shapes)]
        kept = 0
        for rate, level in zip(RATES, level_views(shape, greedy=greedy), strict=False):
            if rng.random() >= level.coverage * kept_share(rate, level.tries):
                break
            kept += 1
        record.add(shape, kept, greedy=greedy)
    return record


@pytest.mark.parametrize("greedy", [True, False])
def test_rates_are_found_from_several_shapes(greedy: bool) -> None:
    record = drawn(greedy)
    assert record.num_trees == 3000
    # The third depth is met by the larger trees only where the first two kept something: about 200 tests.
    for found, true, margin in zip(record.rates(3, greedy=greedy), RATES, (0.04, 0.05, 0.08), strict=True):
        assert abs(found - true) < margin


def test_greedy_and_sampled_are_kept_apart() -> None:
    record = drawn(greedy=True)
    assert record.rates(2, greedy=False) == AcceptanceRecord().rates(2, greedy=False)
    merged = AcceptanceRecord().merge([record, drawn(greedy=False)])
    assert merged.num_trees == 6000
    assert merged.rates(3, greedy=True) == record.rates(3, greedy=True)


def test_a_file_gives_the_same_back(tmp_path: Path) -> None:
    record = AcceptanceRecord().merge([drawn(greedy=True), drawn(greedy=False)])
    record.save(tmp_path / "trace.jsonl")
    loaded = AcceptanceRecord.load(tmp_path / "trace.jsonl")
    assert loaded.num_trees == record.num_trees
    for greedy in (True, False):
        assert loaded.rates(4, greedy=greedy) == pytest.approx(record.rates(4, greedy=greedy))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b'{"greedy": true}\n',
        b'{"greedy": true, "levels": [[1, 1, 0]], "counts": [1, 2, 3]}\n',
        b'{"greedy": true, "levels": [[1, 1, 0]], "counts": [-1, 2]}\n',
        b'{"greedy": true, "levels": [[1, 1, 0]], "counts": [1, 2], "shared": [true, false]}\n',
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="trace.jsonl"):
        AcceptanceRecord.load(path)
    with pytest.raises(ConfigError, match="missing"):
        AcceptanceRecord.load(tmp_path / "missing")
