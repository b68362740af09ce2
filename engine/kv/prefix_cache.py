"""Finds rows that were computed before: of running sequences and of finished ones that were kept.

Tokens are hashed in blocks, each hash over a block and the hash before it: one look-up per block finds
who shares a prefix, and what follows the last whole block is compared token by token. Rows are copied
into the new sequence's own extent, so nothing is shared and nothing is counted.
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

from .extents import Extent

BLOCK = 16  # tokens per hash
MAX_COMPARED = 64  # of many entries that share the same whole blocks, the newest are compared further


@dataclass(eq=False, slots=True)
class CacheEntry:
    """A sequence and its rows: row ``extent.start + i`` is that of ``token_ids[i]``."""

    extent: Extent
    salt: str
    token_ids: list[int]
    target_rows: int = 0  # the first so many rows hold the target's keys and values
    draft_rows: int = 0  # the first so many rows hold the draft's
    chain: list[bytes] = field(default_factory=list, repr=False)  # [i]: hash of the first i blocks

    @property
    def used_rows(self) -> int:
        return max(self.target_rows, self.draft_rows)


@dataclass(frozen=True, slots=True)
class Match:
    """The first ``length`` target rows of ``entry`` are those of the prompt."""

    entry: CacheEntry
    length: int

    @property
    def draft_length(self) -> int:
        return min(self.length, self.entry.draft_rows)


class PrefixCache:
    """Index of all entries by prefix, and the order in which finished ones are given up.

    A collision of hashes would hand out another prompt's rows. They are 128 bits long and keyed with a
    secret of this process, so that nobody can look for one.
    """

    def __init__(self, enabled: bool = True) -> None:
        """A cache that is not ``enabled`` finds nothing and keeps nothing."""
        self.enabled = enabled
        self._key = secrets.token_bytes(32)
        self._index: dict[bytes, dict[CacheEntry, None]] = {}  # entries in order of indexing
        self._retired: OrderedDict[CacheEntry, None] = OrderedDict()  # least recently used first

    @property
    def retired(self) -> tuple[CacheEntry, ...]:
        """Finished entries, least recently used first."""
        return tuple(self._retired)

    @property
    def retired_rows(self) -> int:
        """Rows that eviction can free."""
        return sum(entry.extent.length for entry in self._retired)

    def is_retired(self, entry: CacheEntry) -> bool:
        return entry in self._retired

    def lookup(self, token_ids: Sequence[int], salt: str) -> Match | None:
        """The longest prefix of ``token_ids``, one token or more, whose rows exist under ``salt``.

        Of equally long ones the one with the most rows for the draft, then the newest.
        """
        digest, shared = self._seed(salt), 0
        bucket = self._index.get(digest)
        if bucket is None:
            return None
        while shared + BLOCK <= len(token_ids):
            digest = self._next(digest, token_ids[shared : shared + BLOCK])
            deeper = self._index.get(digest)
            if deeper is None:
                break
            bucket, shared = deeper, shared + BLOCK
        matches = (
            Match(entry, _common_prefix(token_ids, entry, shared))
            for entry in islice(reversed(bucket), MAX_COMPARED)
        )
        best = max(matches, key=lambda match: (match.length, match.draft_length))
        return best if best.length else None

    def extend(self, entry: CacheEntry) -> None:
        """Index a new entry, or the blocks of a known one that its ``target_rows`` have come to fill."""
        if not self.enabled or entry.target_rows == 0:
            return
        if not entry.chain:
            self._add(entry, self._seed(entry.salt))
        while (end := len(entry.chain) * BLOCK) <= entry.target_rows:
            self._add(entry, self._next(entry.chain[-1], entry.token_ids[end - BLOCK : end]))

    def touch(self, entry: CacheEntry) -> None:
        """Note that a finished entry was of use."""
        if entry in self._retired:
            self._retired.move_to_end(entry)

    def retire(self, entry: CacheEntry) -> bool:
        """Let go of a sequence that no longer runs, but keep its rows until the room is needed.

        False, and the entry is dropped, if nothing would be won: it has no rows, another entry holds
        all that it holds, or the cache is off.
        """
        if not entry.chain or self._is_covered(entry):
            self.drop(entry)
            return False
        self._retired[entry] = None
        return True

    def evict(self) -> CacheEntry | None:
        """Drop and return the least recently used finished entry. None: there is none."""
        oldest = next(iter(self._retired), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest

    def drop(self, entry: CacheEntry) -> None:
        """Forget an entry, running or finished. Harmless if it is not known."""
        self._retired.pop(entry, None)
        for digest in entry.chain:
            bucket = self._index[digest]
            del bucket[entry]
            if not bucket:
                del self._index[digest]
        entry.chain.clear()

    def check(self, live: Collection[CacheEntry]) -> None:
        """Raises AssertionError unless exactly the finished and the ``live`` entries are indexed."""
        entries = {*live, *self._retired}
        for entry in entries:
            blocks = entry.target_rows // BLOCK if entry.chain else -1
            if len(entry.chain) != blocks + 1 or (self.enabled and entry.target_rows and not entry.chain):
                raise AssertionError(f"{len(entry.chain)} hashes for the {entry.target_rows} rows of {entry}")
            if not all(entry in self._index.get(digest, {}) for digest in entry.chain):
                raise AssertionError(f"{entry} is missing in the index")
        indexed = sum(len(bucket) for bucket in self._index.values())
        if indexed != sum(len(entry.chain) for entry in entries):
            raise AssertionError("the index holds entries that are neither live nor kept")

    def _is_covered(self, entry: CacheEntry) -> bool:
        computed = entry.token_ids[: entry.target_rows]
        shared = (len(entry.chain) - 1) * BLOCK
        for other in islice(reversed(self._index[entry.chain[-1]]), MAX_COMPARED):
            if other is entry or other.draft_rows < entry.draft_rows:
                continue
            if _common_prefix(computed, other, shared) == len(computed):
                self.touch(other)
                return True
        return False

    def _add(self, entry: CacheEntry, digest: bytes) -> None:
        entry.chain.append(digest)
        self._index.setdefault(digest, {})[entry] = None

    def _seed(self, salt: str) -> bytes:
        return blake2b(salt.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()

    def _next(self, digest: bytes, block: Sequence[int]) -> bytes:
        return blake2b(digest + array("q", block).tobytes(), key=self._key, digest_size=16).digest()


def _common_prefix(token_ids: Sequence[int], entry: CacheEntry, shared: int) -> int:
    """How many of the first tokens are also the first of the entry's computed ones; ``shared`` surely are."""
    end = min(len(token_ids), entry.target_rows)
    for index in range(shared, end):
        if token_ids[index] != entry.token_ids[index]:
            return index
    return end
