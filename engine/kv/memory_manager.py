"""The one object that decides who gets which rows of the KV memory, and what is copied for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .eviction import stalest_run
from .extents import Extent, ExtentAllocator, Move
from .prefix_cache import CacheEntry, Match, PrefixCache


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that got its rows. Execute ``moves`` in order, then ``copy``."""

    entry: CacheEntry
    cached_tokens: int  # prompt tokens whose target rows need not be computed; entry.draft_rows: the draft's
    moves: list[Move]
    copy: Move | None  # None: nothing is cached, or a finished sequence's rows were taken over in place


class KVManager:
    """Rows for running sequences; what they leave free holds finished ones, for their prefixes.

    Every call plans at once and returns the row movements the plan needs, for both models' memories. They
    must be executed in the order of the calls and before the next forward. Only rows that `extend`
    declared are moved: rows of a tree that is not committed do not survive a plan.
    """

    def __init__(self, num_rows: int, align: int = 16, prefix_caching: bool = True) -> None:
        """Raises ValueError if the memory does not hold ``align`` rows."""
        self._allocator = ExtentAllocator(num_rows, align)
        self._owners: dict[Extent, CacheEntry] = {}
        self.cache = PrefixCache(prefix_caching)

    @property
    def num_rows(self) -> int:
        return self._allocator.num_rows

    @property
    def available_rows(self) -> int:
        """Rows that a new sequence could get: free ones and those of finished sequences."""
        return self._allocator.free_rows + self.cache.retired_rows

    def usage(self) -> float:
        """Share of the rows that running sequences hold, in [0, 1]."""
        return 1.0 - self.available_rows / self.num_rows

    def admit(
        self, token_ids: Sequence[int], salt: str, want_rows: int, reusable: int | None = None
    ) -> Admission | None:
        """Give a new sequence ``want_rows`` rows and whatever is known of its first tokens.

        The last token is never taken from the cache: its logits are wanted; nor are those from ``reusable``
        on. None: running sequences hold too much; nothing has changed then. Raises ValueError for an empty
        prompt.
        """
        if not token_ids:
            raise ValueError("a sequence needs at least one token")
        wanted = self._allocator.units(want_rows)
        if wanted > self.available_rows:
            return None
        known = min(len(token_ids) - 1, want_rows)
        match = self.cache.lookup(token_ids[: known if reusable is None else min(known, reusable)], salt)
        if match is None:
            extent, moves = self._new_extent(wanted)
            entry = CacheEntry(extent, salt, list(token_ids))
            admission = Admission(entry, 0, moves, None)
        elif self._is_spent(match, wanted):
            admission = self._take_over(match, token_ids, wanted)
        else:
            # Evicted last, and there is room without it: the source stays until it is copied.
            self.cache.touch(match.entry)
            extent, moves = self._new_extent(wanted)
            entry = CacheEntry(extent, salt, list(token_ids), match.length, match.draft_length)
            copy = Move(match.entry.extent.start, extent.start, match.length)
            admission = Admission(entry, match.length, moves, copy)
        self._owners[admission.entry.extent] = admission.entry
        self.cache.extend(admission.entry)
        return admission

    def extend(self, entry: CacheEntry, token_ids: Sequence[int], target_rows: int, draft_rows: int) -> None:
        """Append a running sequence's new tokens and state how many rows are computed by now.

        Raises ValueError for more rows than tokens or than the extent has, or fewer target rows than
        before, and for a sequence that is not running; nothing has changed then.
        """
        self._must_run(entry)
        limit = min(len(entry.token_ids) + len(token_ids), entry.extent.length)
        if not (entry.target_rows <= target_rows <= limit and 0 <= draft_rows <= limit):
            raise ValueError(
                f"{target_rows} target and {draft_rows} draft rows after {entry.target_rows}, at most {limit}"
            )
        entry.token_ids.extend(token_ids)
        entry.target_rows = target_rows
        entry.draft_rows = draft_rows
        self.cache.extend(entry)

    def ensure(self, entry: CacheEntry, num_rows: int) -> tuple[bool, list[Move]]:
        """Make a running sequence's extent at least ``num_rows`` long.

        In this order: into the free rows behind it, in another free run, over finished sequences right
        behind it, over older finished sequences elsewhere, and by moving others aside.

        False: running sequences hold too much, and one of them has to go; nothing has changed then.
        Raises ValueError if the sequence is not running.
        """
        self._must_run(entry)
        extent = entry.extent
        if num_rows <= extent.length or self._allocator.grow(extent, num_rows):
            return True, []
        wanted = self._allocator.units(num_rows)
        if wanted - extent.length > self.available_rows:
            return False, []
        if self._allocator.largest_free >= wanted:
            return True, self._relocate(entry, wanted)
        self._evict_behind(extent, wanted)
        if self._allocator.grow(extent, wanted):
            return True, []
        if self._evict_run(wanted):
            return True, self._relocate(entry, wanted)
        self._evict_until_free(wanted - extent.length)
        moves = self._used_only(self._allocator.open_behind(extent, wanted))
        return self._allocator.grow(extent, wanted), moves

    def release(self, entry: CacheEntry, keep: bool) -> None:
        """End a running sequence: finished, aborted or preempted.

        With ``keep`` its rows stay until the room is needed. Raises ValueError if it is not running.
        """
        self._must_run(entry)
        entry.draft_rows = min(entry.draft_rows, entry.target_rows)
        if keep and self.cache.retire(entry):
            self._allocator.shrink(entry.extent, entry.target_rows)
        else:
            self.cache.drop(entry)
            self._free(entry)

    def check(self, live: Collection[CacheEntry]) -> None:
        """Raises AssertionError unless every row is free, cached or held by one of the ``live`` entries."""
        self._allocator.check()
        self.cache.check(live)
        if {*self._owners} != {*self._allocator.extents}:
            raise AssertionError("extents without an owner, or owners without an extent")
        if len(self._owners) != len(live) + len(self.cache.retired):
            raise AssertionError(
                f"{len(self._owners)} extents for {len(live)} live and {len(self.cache.retired)} kept entries"
            )
        for entry in (*live, *self.cache.retired):
            if self._owners.get(entry.extent) is not entry:
                raise AssertionError(f"{entry} does not own its extent")
            if entry.used_rows > min(entry.extent.length, len(entry.token_ids)):
                raise AssertionError(f"{entry} claims more rows than it has")

    def _must_run(self, entry: CacheEntry) -> None:
        if self._owners.get(entry.extent) is not entry or self.cache.is_retired(entry):
            raise ValueError("not a running sequence of this memory")

    def _is_spent(self, match: Match, wanted: int) -> bool:
        """True if the match is a finished sequence that a copy would leave without a use of its own, or
        without which there is no room.
        """
        if not self.cache.is_retired(match.entry):
            return False
        rest = self.available_rows - match.entry.extent.length
        return match.length == match.entry.target_rows or wanted > rest

    def _take_over(self, match: Match, token_ids: Sequence[int], wanted: int) -> Admission:
        old = match.entry
        self.cache.drop(old)
        self._allocator.shrink(old.extent, wanted)
        entry = CacheEntry(old.extent, old.salt, list(token_ids), match.length, match.draft_length)
        self._owners[entry.extent] = entry
        _, moves = self.ensure(entry, wanted)  # `admit` has seen that there is enough
        return Admission(entry, match.length, moves, None)

    def _new_extent(self, wanted: int) -> tuple[Extent, list[Move]]:
        moves: list[Move] = []
        if self._allocator.largest_free < wanted and not self._evict_run(wanted):
            self._evict_until_free(wanted)
            moves = self._used_only(self._allocator.compact(wanted))
        return self._allocate(wanted), moves

    def _evict_run(self, wanted: int) -> bool:
        """Free a run of rows at the cost of finished sequences, but only of the older half of them.

        In a memory full of finished sequences this spares nearly every admission a compaction.
        """
        retired = self.cache.retired
        ages = {entry.extent: age for age, entry in enumerate(retired[: len(retired) // 2])}
        run = stalest_run(self._allocator.extents, ages, self.num_rows, wanted)
        for extent in run or ():
            self.cache.drop(self._owners[extent])
            self._free(self._owners[extent])
        return run is not None

    def _relocate(self, entry: CacheEntry, wanted: int) -> list[Move]:
        """Half as much again is taken if it is there, so that a long answer moves a few times only."""
        old = entry.extent
        room = min(self._allocator.largest_free, wanted + wanted // 2)
        new = self._allocate(room)
        entry.extent = new
        self._owners[new] = entry
        del self._owners[old]
        self._allocator.free(old)
        return [Move(old.start, new.start, entry.used_rows)] if entry.used_rows else []

    def _allocate(self, num_rows: int) -> Extent:
        extent = self._allocator.allocate(num_rows)
        if extent is None:
            raise AssertionError(f"no run of {num_rows} rows, although room was made for it")
        return extent

    def _evict_behind(self, extent: Extent, wanted: int) -> None:
        """Drop the finished sequences right behind the extent, if that alone lets it grow."""
        end = extent.start + wanted
        hindering = [other for other in self._allocator.extents if extent.start < other.start < end]
        victims = [self._owners[other] for other in hindering]
        if end <= self.num_rows and all(map(self.cache.is_retired, victims)):
            for victim in victims:
                self.cache.drop(victim)
                self._free(victim)

    def _evict_until_free(self, num_rows: int) -> None:
        while self._allocator.free_rows < num_rows and (victim := self.cache.evict()):
            self._free(victim)

    def _free(self, entry: CacheEntry) -> None:
        del self._owners[entry.extent]
        self._allocator.free(entry.extent)

    def _used_only(self, moves: list[Move]) -> list[Move]:
        """Leave out rows that hold nothing. An extent moves once, so its new start tells whose it is."""
        used = {extent.start: owner.used_rows for extent, owner in self._owners.items()}
        return [
            Move(move.source, move.destination, used[move.destination])
            for move in moves
            if used[move.destination]
        ]
