"""Responses that are kept: by key, in memory, as many as fit."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

from ..schemas.response import Response

Turn = dict[str, Any]
"""A message as chat templates expect it: role and content, and what goes with calls."""


class Kept(Protocol):
    """A response that may still be under way."""

    @property
    def conversation(self) -> tuple[Turn, ...]:
        """All turns up to the answer's, instructions left out."""
        ...

    def snapshot(self) -> Response:
        """What there is of it by now."""
        ...

    def cancel(self) -> bool:
        """End it if it is under way; whether it was."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A response that has ended: what was said, and nothing of what it took."""

    conversation: tuple[Turn, ...]
    response: Response

    def snapshot(self) -> Response:
        return self.response

    def cancel(self) -> bool:
        return False


class ResponseStore:
    """Keeps responses under the key that asked for them; the oldest go when there are too many.

    max_bytes: of text, for each key; 0: nothing is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, OrderedDict[str, tuple[Kept, int]]] = {}

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0

    def put(self, key: str, response_id: str, kept: Kept, size: int) -> None:
        """Keep ``kept``, of ``size`` bytes, or note its new size."""
        mine = self._kept.setdefault(key, OrderedDict())
        mine[response_id] = (kept, size)
        total = sum(size for _, size in mine.values())
        while total > self._max_bytes:
            _, (_, freed) = mine.popitem(last=False)
            total -= freed
        if not mine:
            del self._kept[key]

    def find(self, key: str, response_id: str) -> Kept | None:
        """The response, if ``key`` asked for it and it is still here."""
        mine = self._kept.get(key)
        entry = mine.get(response_id) if mine is not None else None
        return entry[0] if entry is not None else None

    def delete(self, key: str, response_id: str) -> bool:
        """Forget the response; whether it was here."""
        mine = self._kept.get(key)
        if mine is None or mine.pop(response_id, None) is None:
            return False
        if not mine:
            del self._kept[key]
        return True
