"""Extents never overlap, moves carry their rows along, and room that is there can be had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec.engine.kv.extents import Extent, ExtentAllocator, Move


def allocated(allocator: ExtentAllocator, num_rows: int) -> Extent:
    extent = allocator.allocate(num_rows)
    assert extent is not None
    return extent


def filled(lengths: list[int], freed: set[int], num_rows: int) -> tuple[ExtentAllocator, list[Extent]]:
    """Extents one behind the other, some of them freed again. Returns those that are left."""
    allocator = ExtentAllocator(num_rows, align=1)
    extents = [allocated(allocator, length) for length in lengths]
    for index in freed:
        allocator.free(extents[index])
    return allocator, [extent for index, extent in enumerate(extents) if index not in freed]


def written(allocator: ExtentAllocator) -> list[object]:
    memory: list[object] = [None] * allocator.num_rows
    for extent in allocator.extents:
        memory[extent.start : extent.end] = [(id(extent), row) for row in range(extent.length)]
    return memory


def execute(memory: list[object], moves: list[Move]) -> None:
    for move in moves:
        memory[move.destination : move.destination + move.length] = memory[
            move.source : move.source + move.length
        ]


def assert_carried(allocator: ExtentAllocator, memory: list[object], lengths: dict[int, int]) -> None:
    for extent in allocator.extents:
        length = lengths[id(extent)]
        assert memory[extent.start : extent.start + length] == [(id(extent), row) for row in range(length)]


def test_lengths_are_whole_units():
    allocator = ExtentAllocator(100, align=16)
    assert allocator.num_rows == 96
    extent = allocator.allocate(17)
    assert (extent.start, extent.length, allocator.free_rows) == (0, 32, 64)


def test_the_smallest_run_that_fits_is_used():
    allocator, extents = filled([5, 1, 3, 1], {0, 2}, num_rows=20)
    assert allocator.allocate(2).start == 6
    assert allocator.allocate(4).start == 0
    assert len(extents) == 2


def test_too_long_a_run_is_not_found():
    allocator, _ = filled([4, 1, 4, 1], {0, 2}, num_rows=10)
    assert allocator.free_rows == 8
    assert allocator.allocate(5) is None


def test_growing_takes_the_rows_behind():
    allocator, (first, second) = filled([4, 3, 4], {1}, num_rows=11)
    assert allocator.grow(first, 7)
    assert not allocator.grow(first, 8)
    assert not allocator.grow(second, 5)
    assert first.end == second.start
    assert allocator.free_rows == 0


def test_growing_to_less_changes_nothing():
    allocator, (only,) = filled([4], set(), num_rows=8)
    assert allocator.grow(only, 2)
    assert only.length == 4


def test_shrinking_keeps_whole_units():
    allocator = ExtentAllocator(64, align=16)
    extent = allocated(allocator, 64)
    allocator.shrink(extent, 17)
    assert extent.length == 32
    assert allocator.free_rows == 32


def test_an_extent_is_freed_once():
    allocator, (only,) = filled([4], set(), num_rows=8)
    allocator.free(only)
    with pytest.raises(ValueError, match="not handed out"):
        allocator.free(only)


def test_a_memory_without_one_unit_is_refused():
    with pytest.raises(ValueError, match="unit"):
        ExtentAllocator(15, align=16)


def test_compaction_moves_as_few_rows_as_it_can():
    # rows: 2 free, 9 held, 2 free, 1 held, 2 free, 4 held
    allocator, (_, small, _) = filled([2, 9, 2, 1, 2, 4], {0, 2, 4}, num_rows=20)
    assert allocator.compact(4) == [Move(13, 11, 1)]
    assert small.start == 11
    assert allocator.largest_free == 4


def test_room_behind_an_extent_is_made_on_the_cheaper_side():
    # rows: 2 free, 9 held, the extent, 3 held, 2 free
    allocator, (_, extent, small) = filled([2, 9, 1, 3], {0}, num_rows=17)
    assert allocator.open_behind(extent, 3) == [Move(12, 14, 3)]
    assert (extent.start, small.start) == (11, 14)
    assert allocator.grow(extent, 3)


def test_compaction_without_need_or_use_moves_nothing():
    allocator, _ = filled([4, 1, 4, 1], {0, 2}, num_rows=10)
    assert allocator.compact(4) == []
    assert allocator.compact(9) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda allocator: setattr(allocator.extents[1], "start", 8), "overlaps"),
        (lambda allocator: setattr(allocator.extents[1], "start", 17), "units"),
        (lambda allocator: setattr(allocator.extents[1], "length", 64), "behind the last row"),
        (lambda allocator: setattr(allocator.extents[1], "length", 16), "do not make"),
    ],
)
def test_damage_is_noticed(damage, message):
    allocator = ExtentAllocator(64, align=8)
    allocator.allocate(16)
    allocator.allocate(24)
    allocator.check()
    damage(allocator)
    with pytest.raises(AssertionError, match=message):
        allocator.check()


LAYOUT = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)


@given(layout=LAYOUT, spare=st.integers(0, 9), wanted=st.none() | st.integers(1, 30))
def test_compaction_makes_the_run_if_enough_is_free(layout, spare, wanted):
    lengths = [length for length, _ in layout]
    freed = {index for index, (_, free) in enumerate(layout) if free}
    allocator, extents = filled(lengths, freed, sum(lengths) + spare)
    memory = written(allocator)
    starts = {id(extent): extent.start for extent in extents}
    moves = allocator.compact(wanted)
    execute(memory, moves)
    allocator.check()
    assert_carried(allocator, memory, {id(extent): extent.length for extent in extents})
    assert all(move.destination < move.source for move in moves)
    assert all(extent.start <= starts[id(extent)] for extent in extents)
    if wanted is None:
        assert allocator.largest_free == allocator.free_rows
    elif wanted <= allocator.free_rows:
        assert allocator.largest_free >= wanted
    else:
        assert moves == []


@given(layout=LAYOUT, spare=st.integers(0, 9), chosen=st.integers(0, 11), more=st.integers(0, 20))
def test_an_extent_can_grow_behind_others_if_enough_is_free(layout, spare, chosen, more):
    lengths = [length for length, _ in layout]
    freed = {index for index, (_, free) in enumerate(layout) if free and index != 0}
    allocator, extents = filled(lengths, freed, sum(lengths) + spare)
    memory = written(allocator)
    before = {id(extent): extent.length for extent in extents}
    extent = extents[chosen % len(extents)]
    wanted = extent.length + more
    execute(memory, allocator.open_behind(extent, wanted))
    allocator.check()
    assert allocator.grow(extent, wanted) == (more <= sum(lengths) + spare - sum(before.values()))
    allocator.check()
    assert_carried(allocator, memory, before)
