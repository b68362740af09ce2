"""What a grammar leaves open, as candidates: forced tokens, and short choices with what each forces."""

from __future__ import annotations

from collections.abc import Sequence

from ..sources.base import Path
from .base import Constraint, few_members

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
                following = few_members(self._constraint.allowed(tokens), _MAX_CHOICES)
            if not following and tokens:
                found.append((chance, Path(tokens, chances)))
            share = 1 / max(1, len(following))
            open_ends += [((*tokens, token), (*chances, share), chance * share) for token in following]
        found.sort(key=lambda item: -item[0])
        return tuple(path for _, path in found)

    def committed(self, token_ids: Sequence[int], start: int) -> None:
        """The constraint is told by the engine."""
