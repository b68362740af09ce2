"""The contract of whatever restricts a request's tokens, node by node.

Sets of tokens travel as packed bits: uint8, eight ids a byte, the lowest id in the lowest bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PackedSet = NDArray[np.uint8]  # [packed_width(V)]


class Constraint(Protocol):
    """The tokens one request may be given next, after its committed output and some drafted tokens.

    What is allowed depends on the tokens before it and on nothing else, so a step can be run again and
    a request that was preempted goes on as it was.
    """

    @property
    def follows_path(self) -> bool:
        """Whether drafted tokens change what is allowed behind them."""
        ...

    def allowed(self, path: tuple[int, ...]) -> PackedSet:
        """The tokens allowed behind the committed output and ``path``, read-only, never the empty set.

        A path that the constraint itself excludes is never reached; behind it every token is allowed.
        """
        ...

    def accepts(self, path: tuple[int, ...]) -> bool:
        """Whether the committed output may go on with ``path``; cheaper than the sets on its way."""
        ...

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """Tokens that must follow the committed output one after the other, ``max_tokens`` at most.

        Where the answer may end, or must, nothing is forced.
        """
        ...

    def commit(self, token_ids: Sequence[int]) -> int | None:
        """Take tokens as output, and say after how many of them nothing may follow; None: it goes on."""
        ...


def packed_width(vocab_size: int) -> int:
    """Bytes of a set, in whole words of 32 ids."""
    return 4 * -(-vocab_size // 32)


def pack(token_ids: Sequence[int], vocab_size: int) -> PackedSet:
    """A set of ids below ``vocab_size`` as packed bits."""
    flags = np.zeros(8 * packed_width(vocab_size), dtype=np.uint8)
    flags[np.asarray(token_ids, dtype=np.int64)] = 1
    return np.packbits(flags, bitorder="little")


def few_members(packed: PackedSet, most: int) -> list[int]:
    """The members of a set of ``most`` ids or fewer, ascending; none of a larger one."""
    (used,) = packed.nonzero()
    if used.size > most:
        return []
    bits = np.unpackbits(packed[used, None], axis=1, bitorder="little")
    byte, bit = bits.nonzero()
    return (8 * used[byte] + bit).tolist() if byte.size <= most else []
