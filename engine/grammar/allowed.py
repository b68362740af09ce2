"""A fixed set of allowed tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .base import PackedSet, pack


class AllowedTokens:
    """A `Constraint` that is the same everywhere. EOS is as allowed as it is listed."""

    follows_path = False

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self._packed = pack(token_ids, vocab_size)

    def allowed(self, path: tuple[int, ...]) -> PackedSet:  # noqa: ARG002
        return self._packed

    def accepts(self, path: tuple[int, ...]) -> bool:
        return all(self._packed[token >> 3] >> (token & 7) & 1 for token in path)

    def forced(self, max_tokens: int) -> tuple[int, ...]:  # noqa: ARG002
        return ()

    def commit(self, token_ids: Sequence[int]) -> int | None:  # noqa: ARG002
        return None
