"""Where in its grammar one request is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher

from ..work_timer import WorkTimer
from .base import PackedSet, few_members, packed_width


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar for one tokenizer, from which requests start."""

    matcher: LLMatcher  # at the beginning; only ever copied
    mask_ids: int  # ids that its masks cover
    vocab_size: int  # ids from here on do not exist
    eos_token_ids: frozenset[int]

    def start(self, timer: WorkTimer | None = None) -> GrammarState:
        """A request's own. timer: runs while it works."""
        return GrammarState(self, timer or WorkTimer())


class GrammarState:
    """A `Constraint` by a grammar: EOS is allowed exactly where the grammar may end.

    The matcher stands behind the committed output and the path last asked for; it goes to the next one
    by undoing what differs. A drafted token that the grammar excludes leaves no trace.
    """

    follows_path = True

    def __init__(self, grammar: CompiledGrammar, timer: WorkTimer) -> None:
        self._timer = timer
        self._matcher = grammar.matcher.deep_copy()
        self._words = -(-grammar.mask_ids // 32)
        self._width = packed_width(grammar.vocab_size)
        self._eos = grammar.eos_token_ids
        self._path: list[int] = []  # consumed by the matcher, not committed
        self._known: dict[tuple[int, ...], PackedSet] = {}
        self._everything = np.full(self._width, 255, dtype=np.uint8)

    def allowed(self, path: tuple[int, ...]) -> PackedSet:
        found = self._known.get(path)
        if found is None:
            with self._timer:
                found = self._known[path] = self._mask() if self._go_to(path) else self._everything
        return found

    def accepts(self, path: tuple[int, ...]) -> bool:
        with self._timer:
            return self._go_to(path)

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        path: tuple[int, ...] = ()
        with self._timer:
            while len(path) < max_tokens:
                members = few_members(self.allowed(path), 1)
                if not members or members[0] in self._eos:
                    break
                path += (members[0],)
        return path

    def commit(self, token_ids: Sequence[int]) -> int | None:
        with self._timer:
            return self._commit(token_ids)

    def _commit(self, token_ids: Sequence[int]) -> int | None:
        self._go_to(())
        self._known = self._behind(tuple(token_ids))
        for count, token in enumerate(token_ids, start=1):
            if token in self._eos:
                return count
            if not self._matcher.consume_token(token):
                raise RuntimeError(f"token {token} is outside the grammar: {self._matcher.get_error()}")
            if self._matcher.is_stopped():
                return count
        return None

    def _behind(self, taken: tuple[int, ...]) -> dict[tuple[int, ...], PackedSet]:
        """What is known of paths that go on from ``taken``; behind an end nothing is worth keeping."""
        if not self._eos.isdisjoint(taken):
            return {}
        count = len(taken)
        return {path[count:]: found for path, found in self._known.items() if path[:count] == taken}

    def _go_to(self, path: tuple[int, ...]) -> bool:
        """Whether the grammar allows ``path``; if so, the matcher is at its end."""
        shared = 0
        while shared < min(len(path), len(self._path)) and path[shared] == self._path[shared]:
            shared += 1
        if (surplus := len(self._path) - shared) > 0:
            self._matcher.rollback(surplus)
            del self._path[shared:]
        rest = list(path[shared:])
        taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._path += rest[:taken]
        return taken == len(rest)

    def _mask(self) -> PackedSet:
        words = np.zeros(self._words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        packed = words.view(np.uint8)[: self._width]
        if self._matcher.is_error() or not packed.any():
            raise RuntimeError(f"the grammar cannot be followed any further: {self._matcher.get_error()}")
        if packed.size < self._width:
            packed = np.pad(packed, (0, self._width - packed.size))
        return packed
