"""Requests whose grammar is still being compiled: they wait here, not in a step."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

from ..request import RequestError
from ..sequence import Sequence
from ..work_timer import WorkTimer
from .cache import GrammarCache
from .state import CompiledGrammar

_WAIT = 0.05  # seconds: an idle engine looks for news in between


class GrammarIntake:
    """Hands out sequences with their constraints, or with why they have none, when that is known."""

    def __init__(self, cache: GrammarCache) -> None:
        self._cache = cache
        self.timer = WorkTimer()  # runs while a grammar that was handed out works
        self._pending: dict[Sequence, Future[CompiledGrammar]] = {}

    @property
    def sequences(self) -> frozenset[Sequence]:
        return frozenset(self._pending)

    def put(self, sequence: Sequence) -> None:
        """Take in a sequence whose request is structured."""
        spec = sequence.request.sampling.structured
        assert spec is not None
        self._pending[sequence] = self._cache.get(spec)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, if it is here."""
        self._pending.pop(sequence, None)

    def take(self, *, idle: bool) -> list[tuple[Sequence, RequestError | None]]:
        """Those that are settled, in the order they came. idle: nothing else is to be done meanwhile."""
        if idle and self._pending:
            wait(self._pending.values(), timeout=_WAIT, return_when=FIRST_COMPLETED)
        settled: list[tuple[Sequence, RequestError | None]] = []
        for sequence, future in list(self._pending.items()):
            if not future.done():
                continue
            del self._pending[sequence]
            error = future.exception()
            if error is None:
                sequence.constraint = future.result().start(self.timer)
            elif not isinstance(error, RequestError):
                error = RequestError(
                    f"the grammar could not be compiled ({type(error).__name__})", "structured"
                )
            settled.append((sequence, error))
        return settled
