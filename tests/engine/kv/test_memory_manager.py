"""Every sequence finds its own tokens at its own rows, whatever was moved, copied or thrown out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from resispec.engine.kv.extents import Extent, Move
from resispec.engine.kv.memory_manager import Admission, KVManager
from resispec.engine.kv.prefix_cache import CacheEntry


def contents(salt: str, token_ids: Sequence[int]) -> list[int]:
    """What a model would leave at the rows: a value that depends on every token so far."""
    values, value = [], hash(salt)
    for token in token_ids:
        value = hash((value, token))
        values.append(value)
    return values


class Memory:
    """The rows of one model."""

    def __init__(self, num_rows: int) -> None:
        self.rows: list[int | None] = [None] * num_rows

    def execute(self, moves: Sequence[Move]) -> None:
        for move in moves:
            taken = self.rows[move.source : move.source + move.length]
            assert len(taken) == move.length
            self.rows[move.destination : move.destination + move.length] = taken

    def write(self, entry: CacheEntry, first: int, last: int) -> None:
        start = entry.extent.start
        values = contents(entry.salt, entry.token_ids)
        self.rows[start + first : start + last] = values[first:last]

    def assert_holds(self, entry: CacheEntry, num_rows: int) -> None:
        start = entry.extent.start
        assert self.rows[start : start + num_rows] == contents(entry.salt, entry.token_ids[:num_rows])


class KVMachine(RuleBasedStateMachine):
    """Plans several calls, executes their movements in order, then computes: like the engine's step."""

    @initialize(
        num_rows=st.integers(64, 160),
        align=st.sampled_from([1, 4, 16]),
        caching=st.sampled_from([True, True, False]),
    )
    def start(self, num_rows: int, align: int, caching: bool) -> None:
        self.manager = KVManager(num_rows, align, caching)
        self.caching = caching
        self.target, self.draft = Memory(num_rows), Memory(num_rows)
        self.queue: list[Move] = []
        self.live: list[CacheEntry] = []

    def held(self) -> int:
        return sum(entry.extent.length for entry in self.live)

    def layout(self) -> list[tuple[int, int]]:
        return [(extent.start, extent.length) for extent in self.manager._allocator.extents]

    @rule(
        family=st.integers(0, 1),
        shared=st.integers(0, 30),
        own=st.lists(st.integers(0, 1), min_size=1, max_size=4),
        salt=st.sampled_from(["", "", "s"]),
        spare=st.integers(-10, 10),
    )
    def admit(self, family: int, shared: int, own: list[int], salt: str, spare: int) -> None:
        prompt = [family] * shared + own
        self._admit(prompt, salt, max(1, len(prompt) + spare))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def preempt_and_come_back(self, data: st.DataObject, more: list[int]) -> None:
        entry = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.manager.release(entry, keep=True)
        prompt = [*entry.token_ids, *more]
        found = self._admit(prompt, entry.salt, len(prompt))
        if found is not None and self.caching:
            assert found.cached_tokens >= entry.target_rows

    def _admit(self, prompt: list[int], salt: str, want_rows: int) -> Admission | None:
        before = self.layout()
        admission = self.manager.admit(prompt, salt, want_rows)
        align = self.manager._allocator.align
        fits = -(-want_rows // align) * align <= self.manager.num_rows - self.held()
        assert (admission is not None) == fits
        if admission is None:
            assert self.layout() == before
            return None
        entry = admission.entry
        assert entry.token_ids == prompt
        assert admission.cached_tokens == entry.target_rows < len(prompt)
        assert entry.draft_rows <= entry.target_rows
        assert entry.extent.length >= want_rows
        self.queue += admission.moves
        if admission.copy is not None:
            self.queue.append(admission.copy)
        self.live.append(entry)
        return admission

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(0, 40))
    def ensure(self, data: st.DataObject, more: int) -> None:
        entry = data.draw(st.sampled_from(self.live))
        before, had = self.layout(), entry.extent.length
        align = self.manager._allocator.align
        wanted = -(-(had + more) // align) * align
        enough, moves = self.manager.ensure(entry, had + more)
        assert enough == (wanted - had <= self.manager.num_rows - self.held() + entry.extent.length - had)
        if enough:
            assert entry.extent.length >= had + more
        else:
            assert (moves, self.layout()) == ([], before)
        self.queue += moves

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        entry = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.manager.release(entry, keep)

    @rule(data=st.data())
    def forward(self, data: st.DataObject) -> None:
        """Execute what was planned, compute some rows of some sequences, commit."""
        for memory in (self.target, self.draft):
            memory.execute(self.queue)
        self.queue.clear()
        for entry in self.live:
            new = data.draw(st.lists(st.integers(0, 2), max_size=4))
            limit = min(len(entry.token_ids) + len(new), entry.extent.length)
            target_rows = data.draw(st.just(limit) | st.integers(entry.target_rows, limit))
            draft_rows = data.draw(st.just(limit) | st.integers(0, limit))
            before = entry.target_rows, entry.draft_rows
            self.manager.extend(entry, new, target_rows, draft_rows)
            self.target.write(entry, before[0], target_rows)
            self.draft.write(entry, before[1], draft_rows)
        for entry in (*self.live, *self.manager.cache.retired):
            self.target.assert_holds(entry, entry.target_rows)
            self.draft.assert_holds(entry, entry.draft_rows)

    @rule()
    def idle(self) -> None:
        """Everything ends; every row is free or cached, and a request for all of them is served."""
        for entry in self.live:
            self.manager.release(entry, keep=True)
        self.live.clear()
        self.manager.check([])
        assert self.manager.available_rows == self.manager.num_rows
        assert self.caching or self.manager._allocator.free_rows == self.manager.num_rows
        assert self._admit([9], "", self.manager.num_rows) is not None

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check(self.live)
            assert self.manager.usage() == pytest.approx(self.held() / self.manager.num_rows)


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def computed(manager: KVManager, token_ids: Sequence[int], rows: int | None = None) -> CacheEntry:
    """A running sequence with all of its rows computed."""
    admission = manager.admit(token_ids, "", rows or len(token_ids))
    assert admission is not None
    manager.extend(admission.entry, (), len(token_ids), len(token_ids))
    return admission.entry


def test_the_prefix_of_a_running_sequence_is_copied():
    manager = KVManager(256)
    first = computed(manager, range(50))
    admission = manager.admit([*range(40), 99], "", 64)
    assert admission.copy == Move(first.extent.start, admission.entry.extent.start, 40)
    assert admission.cached_tokens == admission.entry.target_rows == admission.entry.draft_rows == 40


def test_the_last_prompt_token_is_computed():
    manager = KVManager(256)
    computed(manager, range(50))
    assert manager.admit(range(50), "", 64).cached_tokens == 49


def test_rows_of_a_finished_turn_are_taken_over_in_place():
    manager = KVManager(256)
    first = computed(manager, range(50))
    manager.release(first, keep=True)
    admission = manager.admit(range(80), "", 96)
    assert admission.copy is None
    assert admission.cached_tokens == 50
    assert admission.entry.extent.start == first.extent.start
    manager.check([admission.entry])
    assert manager.cache.retired == ()


def test_the_source_is_not_evicted_for_its_own_copy():
    manager = KVManager(96, align=16)
    source = computed(manager, range(40), 48)
    manager.release(source, keep=True)
    other = computed(manager, [7] * 16)
    manager.release(other, keep=True)
    admission = manager.admit([*range(32), 99], "", 48)
    assert admission.copy.length == 32
    assert manager.cache.retired == (source,)


def test_a_source_without_room_for_a_copy_is_cut_and_taken_over():
    manager = KVManager(64, align=16)
    source = computed(manager, range(40), 48)
    manager.release(source, keep=True)
    admission = manager.admit([*range(20), 99, *range(20)], "", 48)
    assert admission.copy is None
    assert admission.cached_tokens == 20
    manager.check([admission.entry])


def test_the_least_recently_used_goes_first():
    manager = KVManager(64, align=16)
    entries = [computed(manager, [number] * 16) for number in range(4)]
    for entry in entries:
        manager.release(entry, keep=True)
    manager.admit([0] * 8 + [9], "", 16)  # uses the first, so the second is the oldest
    assert entries[0] in manager.cache.retired
    assert entries[1] not in manager.cache.retired


def test_growth_evicts_a_finished_neighbour():
    manager = KVManager(64, align=16)
    grower, neighbour, blocker, oldest = (computed(manager, [number] * 16) for number in range(4))
    assert manager.ensure(grower, 17) == (False, [])
    manager.release(oldest, keep=True)
    manager.release(neighbour, keep=True)
    assert manager.ensure(grower, 17) == (True, [])
    assert manager.cache.retired == (oldest,)
    manager.check([grower, blocker])


def test_growth_moves_to_where_an_old_sequence_was():
    manager = KVManager(128, align=16)
    rows = (32, 48, 16, 16, 16)
    oldest, other, grower, blocker, recent = (
        computed(manager, [number] * length) for number, length in enumerate(rows)
    )
    manager.release(oldest, keep=True)
    manager.release(recent, keep=True)
    assert manager.ensure(grower, 32) == (True, [Move(80, 0, 16)])
    manager.check([other, grower, blocker])


def test_a_recent_sequence_is_kept_if_closing_gaps_is_enough():
    manager = KVManager(96, align=16)
    recent, first, gone, second = (
        computed(manager, [number] * length) for number, length in enumerate((32, 16, 16, 16))
    )
    manager.release(gone, keep=False)
    manager.release(recent, keep=True)
    admission = manager.admit([9] * 20, "", 32)
    assert admission.moves == [Move(64, 48, 16)]
    assert manager.cache.retired == (recent,)
    manager.check([first, second, admission.entry])


def test_growth_moves_used_rows_only():
    manager = KVManager(160, align=16)
    grower = manager.admit([1] * 40, "", 48).entry
    manager.extend(grower, (), 5, 3)
    manager.admit([2] * 16, "", 16)
    assert manager.ensure(grower, 64) == (True, [Move(0, 64, 5)])


def fragmented(manager: KVManager) -> tuple[CacheEntry, CacheEntry]:
    """Rows 0-15 free, 16-47 held, 48-63 free, 64-79 held."""
    entries = [computed(manager, [number] * rows, rows) for number, rows in enumerate((16, 25, 16, 9))]
    for entry in entries[::2]:
        manager.release(entry, keep=False)
    return entries[1], entries[3]


def test_admission_closes_gaps_only_when_no_run_is_long_enough():
    manager = KVManager(80, align=16)
    first, second = fragmented(manager)
    admission = manager.admit([5] * 30, "", 32)
    assert admission.moves == [Move(16, 0, 25)]
    assert admission.entry.extent.start == 32
    manager.check([first, second, admission.entry])


def test_a_memory_full_of_finished_sequences_moves_nobody_for_a_new_one():
    manager = KVManager(1024, align=16)
    generator = random.Random(0)
    for _ in range(200):
        prompt = [generator.randrange(1000) for _ in range(generator.randint(20, 150))]
        admission = manager.admit(prompt, "", len(prompt))
        assert admission.moves == []
        manager.extend(admission.entry, (), len(prompt), 0)
        manager.release(admission.entry, keep=True)
    assert manager.cache.retired_rows > 700


def test_growth_pushes_others_aside_as_the_last_resort():
    manager = KVManager(80, align=16)
    first, second = fragmented(manager)
    assert manager.ensure(first, 64) == (True, [Move(16, 0, 25)])
    assert manager.ensure(first, 65) == (False, [])
    manager.check([first, second])


def test_growth_does_not_evict_where_that_is_no_help():
    """Behind the kept entry there is a running one, so room has to come from elsewhere."""
    manager = KVManager(64, align=16)
    oldest, grower, kept, blocker = (computed(manager, [number] * 16) for number in range(4))
    manager.release(oldest, keep=True)
    manager.release(kept, keep=True)
    assert manager.ensure(grower, 48)[0]
    manager.check([grower, blocker])


def test_growth_spares_neighbours_when_the_memory_ends_too_soon():
    manager = KVManager(64, align=16)
    oldest, grower = computed(manager, [1] * 32), computed(manager, [2] * 16)
    recent = computed(manager, [3] * 16)
    manager.release(oldest, keep=True)
    manager.release(recent, keep=True)
    assert manager.ensure(grower, 48) == (True, [Move(32, 0, 16)])
    assert manager.cache.retired == (recent,)


def test_a_kept_sequence_gives_its_spare_rows_back():
    manager = KVManager(64, align=16)
    manager.release(computed(manager, range(10), 64), keep=True)
    assert manager.cache.retired_rows == 16


def test_a_prompt_longer_than_the_rows_wanted_takes_no_more_than_these():
    manager = KVManager(128, align=16)
    computed(manager, range(50))
    admission = manager.admit(range(50), "", 20)
    assert admission.cached_tokens == 20


def test_an_aborted_sequence_leaves_nothing():
    manager = KVManager(64)
    entry = computed(manager, range(40))
    assert manager.usage() == 0.75
    manager.release(entry, keep=False)
    assert manager.usage() == 0.0
    manager.check([])
    assert manager.admit(range(41), "", 41).cached_tokens == 0


def test_misuse_is_refused():
    manager = KVManager(64)
    with pytest.raises(ValueError, match="at least one token"):
        manager.admit([], "", 1)
    entry = manager.admit(range(20), "", 20).entry
    for rows in ((33, 0), (0, 33), (-1, 0), (21, 0)):
        with pytest.raises(ValueError, match="rows"):
            manager.extend(entry, (), *rows)
    manager.extend(entry, (), 10, 0)
    with pytest.raises(ValueError, match="after 10"):
        manager.extend(entry, (), 9, 0)
    manager.release(entry, keep=True)
    for call in (lambda: manager.release(entry, keep=True), lambda: manager.ensure(entry, 5)):
        with pytest.raises(ValueError, match="not a running sequence"):
            call()


def test_a_leak_is_noticed():
    manager = KVManager(64)
    entry = computed(manager, range(20))
    with pytest.raises(AssertionError, match="neither live nor kept"):
        manager.check([])
    manager = KVManager(64, prefix_caching=False)
    entry = computed(manager, range(20))
    with pytest.raises(AssertionError, match="1 extents for 0 live"):
        manager.check([])
    entry.extent = Extent(0, 16)
    with pytest.raises(AssertionError, match="does not own"):
        manager.check([entry])
