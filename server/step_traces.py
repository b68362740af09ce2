"""The steps of recent requests, kept for who asked for them: by key, in memory, as many as fit."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from resispec.engine.outputs import RequestOutput
from resispec.engine.trace import StepTrace

MAX_REQUESTS = 256  # of one key
_OVERHEAD = 64  # bytes a step takes beside its own


@dataclass(slots=True)
class ChoiceTrace:
    """The steps of one sequence. The earliest may be gone."""

    dropped: int = 0
    encoded: deque[bytes] = field(default_factory=deque)

    @property
    def num_steps(self) -> int:
        return self.dropped + len(self.encoded)

    def steps(self, start: int, stop: int) -> list[tuple[int, StepTrace]]:
        """The steps from ``start`` up to ``stop`` that are still here, each with its number."""
        numbers = range(max(start, self.dropped), min(stop, self.num_steps))
        return [
            (number, msgspec.msgpack.decode(self.encoded[number - self.dropped], type=StepTrace))
            for number in numbers
        ]


@dataclass(slots=True)
class RequestTrace:
    """All sequences of one request, by choice."""

    choices: dict[int, ChoiceTrace] = field(default_factory=dict)
    size: int = 0  # bytes

    def add(self, choice: int, step: StepTrace) -> None:
        encoded = msgspec.msgpack.encode(step)
        self.choices.setdefault(choice, ChoiceTrace()).encoded.append(encoded)
        self.size += len(encoded) + _OVERHEAD

    def drop_earliest(self) -> None:
        """Forget the earliest step of the longest choice."""
        longest = max(self.choices.values(), key=lambda choice: len(choice.encoded))
        self.size -= len(longest.encoded.popleft()) + _OVERHEAD
        longest.dropped += 1


class StepTraceStore:
    """Keeps traces under the key that asked for them; the oldest go when there are too many.

    max_bytes: for each key; 0: nothing is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[str, OrderedDict[str, RequestTrace]] = {}

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0

    def open(self, key: str, request_id: str) -> Callable[[int, RequestOutput], None]:
        """Begin a request's trace; what is returned takes the steps out of its outputs: (choice, output).

        An earlier request of ``key`` with the same id is forgotten.
        """
        mine = self._kept.setdefault(key, OrderedDict())
        trace = RequestTrace()
        mine.pop(request_id, None)
        mine[request_id] = trace
        if len(mine) > MAX_REQUESTS:
            mine.popitem(last=False)

        def add(choice: int, output: RequestOutput) -> None:
            for step in output.trace:
                trace.add(choice, step)
            # Not if it has been pushed out meanwhile: nobody can ask for it any more.
            if mine.get(request_id) is trace:
                self._make_room(mine, trace)

        return add

    def find(self, key: str, request_id: str) -> RequestTrace | None:
        """The trace, if ``key`` asked for it and it is still here."""
        mine = self._kept.get(key)
        return None if mine is None else mine.get(request_id)

    def _make_room(self, mine: OrderedDict[str, RequestTrace], latest: RequestTrace) -> None:
        """Push out the oldest requests, then the earliest steps of the one that grows."""
        total = sum(trace.size for trace in mine.values())
        while total > self._max_bytes:
            oldest_id, oldest = next(iter(mine.items()))
            if oldest is not latest:
                del mine[oldest_id]
                total -= oldest.size
            elif len(mine) > 1:
                mine.move_to_end(oldest_id)
            else:
                before = latest.size
                latest.drop_earliest()
                total -= before - latest.size
