"""What a grammar leaves open, as candidates: forced tokens, and short choices with what each forces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..sources.base import Path
from .base import Constraint, PackedSet

_MAX_CHOICES = 4  # tokens of a node that are all worth being candidates
_LEAST = 0.05  # chance of a path below which it is not followed any further


class GrammarSource:
    """A `Source`. Tokens that are forced are certain; of few, each is as likely as the others.

    Only what the mask allows alone is taken as forced, so the target's law says the same.
    """

    name = "grammar"

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def paths(self, token_ids: Sequence[int], max_tokens: int) -> tuple[Path, ...]:  # noqa: ARG002
        """The constraint stands behind the committed text, so ``token_ids`` is not looked at."""
        found: list[tuple[float, Path]] = []
        open_ends: list[tuple[tuple[int, ...], tuple[float, ...], float]] = [((), (), 1.0)]
        while open_ends:
            tokens, chances, chance = open_ends.pop()
            following: list[int] = []
            if len(tokens) < max_tokens and chance >= _LEAST:
                following = _few(self._constraint.allowed(tokens))
            if not following and tokens:
                found.append((chance, Path(tokens, chances)))
            share = 1 / max(1, len(following))
            open_ends += [((*tokens, token), (*chances, share), chance * share) for token in following]
        found.sort(key=lambda item: -item[0])
        return tuple(path for _, path in found)

    def committed(self, token_ids: Sequence[int], start: int) -> None:
        """The constraint is told by the engine."""


def _few(packed: PackedSet) -> list[int]:
    """The members of a small set; none of a large one."""
    (used,) = packed.nonzero()
    if used.size > _MAX_CHOICES:
        return []
    bits = np.unpackbits(packed[used, None], axis=1, bitorder="little")
    byte, bit = bits.nonzero()
    return (8 * used[byte] + bit).tolist() if byte.size <= _MAX_CHOICES else []
