"""The contract of a source: tokens that may follow a sequence, known before anything is drawn.

A source belongs to one request. What it says may depend on anything known before the step, so the
verifier stays exact whatever it says. For a request with a seed it may depend on the request's own
history only: its text must not change with its company.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

TopTokens: TypeAlias = tuple[int, tuple[int, ...]]  # a token, and what the target ranks highest after it


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens that may follow, in order."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]  # of each token, that it is right if all before it are, in [0, 1]


class Source(Protocol):
    """Says what may follow; cheap, for it is asked once a step on the host."""

    @property
    def name(self) -> str: ...

    def paths(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[Path, ...]:
        """Paths that may follow ``token_ids`` (prompt and output), best first, of ``max_tokens`` at most.

        May be asked twice about one text; changes nothing but what `committed` learns from.
        """
        ...

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        """The text has grown: ``token_ids[start:]`` is new since the last call, or since the prompt."""
        ...


@runtime_checkable
class TopsObserver(Protocol):
    """A source that learns from what the target ranked highest."""

    def observe(self, tops: SequenceOf[TopTokens]) -> None:
        """Of the step that was just committed, after `Source.committed`."""
        ...


@runtime_checkable
class Foreseer(Protocol):
    """A source that is told what heads on the target's state say of the next places."""

    def look_ahead(self, tops: SequenceOf[SequenceOf[int]], at: int) -> None:
        """After `Source.committed`. tops: each head's best tokens, of the places from ``at`` on."""
        ...


@runtime_checkable
class OutputCollector(Protocol):
    """A source that learns from whole answers."""

    def finished(self, token_ids: SequenceOf[int]) -> None:
        """The request has ended, for whatever reason."""
        ...
