"""In which steps the sources of known candidates are asked, where many requests decode."""

from __future__ import annotations

_MANY = 4  # requests from which on asking for all of them in every step takes its time
_PATIENCE = 8  # steps in which nothing was taken, until not every one is looked at
_EVERY = 4


class Looks:
    """Every step, or every fourth one while nothing of what is known is taken: a text that begins to
    repeat itself is noticed three steps later at most.
    """

    def __init__(self) -> None:
        self._in_vain = 0  # steps

    def is_due(self, batch: int) -> bool:
        """Whether to ask in this step of ``batch`` requests."""
        return batch < _MANY or self._in_vain < _PATIENCE or self._in_vain % _EVERY == 0

    def made(self, *, taken: bool) -> None:
        """A step was planned, and known candidates taken or not."""
        self._in_vain = 0 if taken else self._in_vain + 1
