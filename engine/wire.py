"""What an engine in a process of its own sends in every step, as bytes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .outputs import StepResult


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that the engine refused, with what its `RequestError` said."""

    request_id: str
    message: str
    param: str | None


@dataclass(frozen=True, slots=True)
class _Message:
    """Exactly one is set."""

    result: StepResult | None = None
    rejected: Rejected | None = None


class Wire:
    """Writes and reads messages; for either end. Takes a fraction of the time that pickling them does."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Message)

    def encode(self, message: StepResult | Rejected) -> bytes:
        if isinstance(message, Rejected):
            return self._encoder.encode(_Message(rejected=message))
        return self._encoder.encode(_Message(result=message))

    def decode(self, data: bytes) -> StepResult | Rejected:
        message = self._decoder.decode(data)
        found = message.result or message.rejected
        assert found is not None
        return found
