"""Tool calls in a growing answer: what is text, which tools are called, and their arguments as they come."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from .formats import ToolFormat


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    index: int  # of the call in the answer
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    index: int
    text: str  # of the arguments' JSON, as the model writes it


Event: TypeAlias = TextPiece | CallBegan | ArgumentsPiece


class _State(Enum):
    TEXT = auto()
    CALL = auto()  # behind the marker, before the arguments
    ARGUMENTS = auto()
    BEHIND = auto()  # behind the arguments


class CallParser:
    """Reads one answer, in pieces of any size. What looks like a call and is none comes out as text."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._head = re.compile(
            r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"' + form.arguments + r'"\s*:\s*(?=\{)'
        )
        self._state = _State.TEXT
        self._buffer = ""  # not yet settled
        self._marker = ""  # what opened the call, to be given back if it is none
        self._depth = 0
        self._in_string = self._escaped = False
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        return self._run(last=False)

    def finish(self) -> list[Event]:
        """The answer has ended."""
        events = self._run(last=True)
        if self._state in (_State.TEXT, _State.CALL) and (rest := self._marker + self._buffer):
            events.append(TextPiece(rest))
        self._buffer = self._marker = ""
        return events

    def _run(self, *, last: bool) -> list[Event]:
        events: list[Event] = []
        steps = {
            _State.TEXT: self._text,
            _State.CALL: self._call,
            _State.ARGUMENTS: self._arguments,
            _State.BEHIND: self._behind,
        }
        while True:
            before = (self._state, self._buffer)
            events += steps[self._state](last)
            if (self._state, self._buffer) == before:
                return events

    def _text(self, last: bool) -> list[Event]:
        begin = self._form.begin
        place = self._buffer.find(begin)
        if place >= 0:
            text = self._buffer[:place].rstrip()
            self._open(begin, self._buffer[place + len(begin) :])
            return [TextPiece(text)] if text else []
        if self._form.is_bare and self._buffer.lstrip().startswith("{"):
            self._open("", self._buffer)
            return []
        if last:
            return []
        # White space in front of a marker is not shown, so it is held back like a marker's beginning.
        shown = self._buffer[: len(self._buffer) - _overlap(self._buffer, begin)].rstrip()
        self._buffer = self._buffer[len(shown) :]
        return [TextPiece(shown)] if shown else []

    def _open(self, marker: str, rest: str) -> None:
        self._state, self._marker, self._buffer = _State.CALL, marker, rest

    def _call(self, last: bool) -> list[Event]:  # noqa: ARG002
        buffer = self._buffer
        if self._form.is_list and self._marker:
            buffer = buffer.lstrip()
            if not buffer:
                return []
            buffer = buffer.removeprefix("[")
        head = self._head.match(buffer)
        if head is not None:
            self._state, self._marker, self._buffer = _State.ARGUMENTS, "", buffer[head.end() :]
            self._depth, self._in_string, self._escaped = 0, False, False
            return [self._began(json.loads(head[1]))]
        whole = _leading_object(buffer)
        if whole is None:
            return []
        value, end = whole
        name, arguments = value.get("name"), value.get(self._form.arguments, value.get("arguments"))
        if isinstance(name, str) and isinstance(arguments, dict):  # in another order than usual
            self._state, self._marker, self._buffer = _State.BEHIND, "", buffer[end:]
            began = self._began(name)
            return [began, ArgumentsPiece(began.index, json.dumps(arguments, ensure_ascii=False))]
        text = self._marker + buffer[:end]
        self._state, self._marker, self._buffer = _State.TEXT, "", buffer[end:]
        return [TextPiece(text)]

    def _began(self, name: str) -> CallBegan:
        self.num_calls += 1
        return CallBegan(self.num_calls - 1, name)

    def _arguments(self, last: bool) -> list[Event]:  # noqa: ARG002
        for place, character in enumerate(self._buffer):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    text, rest = self._buffer[: place + 1], self._buffer[place + 1 :]
                    self._state, self._buffer = _State.BEHIND, rest.lstrip().removeprefix("}")
                    return [ArgumentsPiece(self.num_calls - 1, text)]
        text, self._buffer = self._buffer, ""
        return [ArgumentsPiece(self.num_calls - 1, text)] if text else []

    def _behind(self, last: bool) -> list[Event]:
        """Skip what ends a call or parts two; then comes another call, or text."""
        form = self._form
        rest = self._buffer.lstrip(" \n\r\t,;}]")
        if form.end and rest.startswith(form.end):
            self._buffer = rest[len(form.end) :]
        elif rest.startswith(form.begin):
            self._open(form.begin, rest[len(form.begin) :])
        elif rest.startswith("{") and (form.is_list or form.is_bare):
            self._open("", rest)
        elif last and form.end.startswith(rest):  # cut in the middle of what ends a call
            self._buffer = ""
        elif last or (rest and not any(mark.startswith(rest) for mark in (form.end, form.begin))):
            self._state, self._buffer = _State.TEXT, rest
        else:
            self._buffer = rest
        return []


def _overlap(text: str, marker: str) -> int:
    """How much of the end of ``text`` may be the beginning of ``marker``."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


def _leading_object(text: str) -> tuple[dict[str, object], int] | None:
    """The JSON object that ``text`` begins with, if it is complete, and where it ends."""
    start = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return (value, end) if isinstance(value, dict) else None
