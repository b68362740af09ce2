"""Prefixes are found to the last token, apart by salt, and forgotten in the order of their use."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from resispec.engine.kv.extents import Extent
from resispec.engine.kv.prefix_cache import BLOCK, CacheEntry, PrefixCache


def stored(
    cache: PrefixCache,
    token_ids: Sequence[int],
    target_rows: int | None = None,
    draft_rows: int = 0,
    salt: str = "",
) -> CacheEntry:
    rows = len(token_ids) if target_rows is None else target_rows
    made = CacheEntry(Extent(0, 64), salt, list(token_ids), rows, draft_rows)
    cache.extend(made)
    return made


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 5])
def test_a_shared_prefix_is_found_to_the_last_token(length):
    cache = PrefixCache()
    made = stored(cache, range(4 * BLOCK))
    match = cache.lookup([*range(length), 999, 998], "")
    assert (match.entry, match.length) == (made, length)


def test_nothing_in_common_is_no_match():
    cache = PrefixCache()
    assert cache.lookup([1], "") is None
    stored(cache, [1, 2, 3])
    assert cache.lookup([2, 3], "") is None
    assert cache.lookup([], "") is None


def test_only_computed_rows_count():
    cache = PrefixCache()
    made = stored(cache, range(50), target_rows=20)
    assert cache.lookup(range(50), "").length == 20
    made.target_rows = 33
    cache.extend(made)
    assert cache.lookup(range(50), "").length == 33


def test_salts_are_kept_apart():
    cache = PrefixCache()
    stored(cache, range(40), salt="a")
    mine = stored(cache, range(20), salt="b")
    assert cache.lookup(range(40), "b").entry is mine
    assert cache.lookup(range(40), "") is None


def test_the_longest_wins_then_the_draft_then_the_newest():
    cache = PrefixCache()
    stored(cache, [*range(20), 7, 7])
    longest = stored(cache, [*range(20), 20, 7])
    assert cache.lookup(range(40), "").entry is longest
    drafted = stored(cache, [*range(20), 20, 8], draft_rows=10)
    stored(cache, [*range(20), 20, 9], draft_rows=9)
    assert cache.lookup(range(40), "").entry is drafted
    newest = stored(cache, [*range(20), 20, 6], draft_rows=10)
    assert cache.lookup(range(40), "").entry is newest
    assert cache.lookup(range(40), "").draft_length == 10


def test_only_new_blocks_are_hashed(monkeypatch):
    cache = PrefixCache()
    made = stored(cache, range(10 * BLOCK), target_rows=9 * BLOCK)
    hashed: list[Sequence[int]] = []
    original = cache._next

    def counted(digest: bytes, block: Sequence[int]) -> bytes:
        hashed.append(block)
        return original(digest, block)

    monkeypatch.setattr(cache, "_next", counted)
    made.target_rows = 10 * BLOCK - 1
    cache.extend(made)
    assert hashed == []
    made.target_rows = 10 * BLOCK
    cache.extend(made)
    assert hashed == [[*range(9 * BLOCK, 10 * BLOCK)]]


def test_finished_entries_go_least_recently_used_first():
    cache = PrefixCache()
    first, second, third = (stored(cache, [number] * 20) for number in range(3))
    assert all(map(cache.retire, (first, second, third)))
    cache.touch(first)
    assert cache.evict() is second
    assert cache.evict() is third
    assert cache.evict() is first
    assert cache.evict() is None
    cache.check([])


def test_a_live_entry_is_never_evicted():
    cache = PrefixCache()
    live = stored(cache, range(20))
    assert cache.evict() is None
    assert cache.lookup(range(20), "").entry is live
    cache.check([live])


def test_an_entry_whose_rows_another_one_holds_is_not_kept():
    cache = PrefixCache()
    longer = stored(cache, range(40), draft_rows=30)
    assert not cache.retire(stored(cache, range(30), draft_rows=30))
    assert cache.retire(stored(cache, range(30), draft_rows=30 + 1))
    assert cache.retire(stored(cache, [*range(30), 5], draft_rows=10))
    assert cache.retire(longer)


def test_an_entry_without_rows_is_not_kept():
    cache = PrefixCache()
    assert not cache.retire(stored(cache, range(20), target_rows=0))
    cache.check([])


def test_a_dropped_entry_is_not_found():
    cache = PrefixCache()
    made = stored(cache, range(40))
    cache.drop(made)
    cache.drop(made)
    assert cache.lookup(range(40), "") is None
    cache.check([])


def test_a_cache_that_is_off_finds_and_keeps_nothing():
    cache = PrefixCache(enabled=False)
    made = stored(cache, range(40))
    assert cache.lookup(range(40), "") is None
    assert not cache.retire(made)


def test_a_forgotten_entry_is_noticed():
    cache = PrefixCache()
    stored(cache, range(40))
    with pytest.raises(AssertionError, match="neither live nor kept"):
        cache.check([])


def test_rows_that_were_not_indexed_are_noticed():
    cache = PrefixCache()
    made = stored(cache, range(40), target_rows=20)
    cache.check([made])
    made.target_rows = 32
    with pytest.raises(AssertionError, match="2 hashes for the 32 rows"):
        cache.check([made])


def test_keys_differ_between_processes():
    first, second = stored(PrefixCache(), range(40)), stored(PrefixCache(), range(40))
    assert first.chain != second.chain
