"""What an engine in a process of its own sends in every step, as bytes, and how bytes become messages."""

from __future__ import annotations

import os

import msgspec

from .outputs import StepResult


class Rejected(msgspec.Struct, frozen=True, array_like=True):
    """A request that the engine refused, with what its `RequestError` said."""

    request_id: str
    message: str
    param: str | None


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """Exactly one is set."""

    result: StepResult | None = None
    rejected: Rejected | None = None


_HEAD = 4  # bytes before a message, which say how long it is


class Frames:
    """Cuts what is read of a stream into the messages that `frame` has put into it."""

    def __init__(self) -> None:
        self._unread = bytearray()  # the beginning of a message

    def feed(self, data: bytes | bytearray) -> list[bytearray]:
        """The messages that are whole with ``data``, which comes behind what was fed before."""
        self._unread += data
        messages: list[bytearray] = []
        begin = 0
        while len(self._unread) >= begin + _HEAD:
            start = begin + _HEAD
            end = start + int.from_bytes(self._unread[begin:start], "little")
            if end > len(self._unread):
                break
            begin = end
            messages.append(self._unread[start:end])
        del self._unread[:begin]
        return messages


def frame(message: bytes) -> bytes:
    """The message as it goes into a stream."""
    return len(message).to_bytes(_HEAD, "little") + message


class Wire:
    """Writes and reads messages; for either end. Takes a fraction of the time that pickling them does."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Message)
        self._frames = Frames()

    def send(self, pipe: int, message: StepResult | Rejected) -> None:
        """Write to a descriptor that blocks. Raises OSError where nobody reads any more."""
        data = memoryview(self.encode(message))
        while data:
            data = data[os.write(pipe, data) :]

    def encode(self, message: StepResult | Rejected) -> bytearray:
        whole = _Message(rejected=message) if isinstance(message, Rejected) else _Message(result=message)
        data = bytearray(_HEAD)
        self._encoder.encode_into(whole, data, _HEAD)
        data[:_HEAD] = (len(data) - _HEAD).to_bytes(_HEAD, "little")
        return data

    def feed(self, data: bytes | bytearray) -> list[StepResult | Rejected]:
        """The messages that are whole with ``data``, which comes behind what was fed before."""
        return [self._decode(message) for message in self._frames.feed(data)]

    def _decode(self, data: bytearray) -> StepResult | Rejected:
        message = self._decoder.decode(data)
        found = message.result or message.rejected
        assert found is not None
        return found
