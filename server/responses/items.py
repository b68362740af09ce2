"""The output items of one response as its answer grows, and the events that tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from resispec.engine.outputs import RequestOutput

from ..logprobs import LogprobFormat
from ..schemas.logprobs import ContentLogprob
from ..schemas.response import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    Event,
    ItemEvent,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from ..schemas.response_tools import FunctionCall, ItemStatus, OutputFunctionCall
from ..tools.formats import ToolFormat
from ..tools.parser import ArgumentsPiece, CallBegan, CallParser, TextPiece
from ..tools.reader import new_call_id
from .store import Turn


@dataclass(slots=True)
class _Message:
    id: str
    status: ItemStatus = "in_progress"
    text: str = ""
    scores: list[ContentLogprob] = field(default_factory=list)

    def body(self, status: ItemStatus) -> OutputMessage:
        return OutputMessage(id=self.id, status=status, content=[self.part()])

    def part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=self.scores)


@dataclass(slots=True)
class _Call:
    id: str
    call_id: str
    name: str
    status: ItemStatus = "in_progress"
    arguments: str = ""

    def body(self, status: ItemStatus) -> OutputFunctionCall:
        return OutputFunctionCall(
            id=self.id, status=status, call_id=self.call_id, name=self.name, arguments=self.arguments
        )

    @property
    def is_whole(self) -> bool:
        """An answer may be cut between the end of a call's arguments and the mark that ends the call."""
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


_Item: TypeAlias = _Message | _Call


class OutputItems:
    """Of one response: messages and calls in the order they came; the last one may be open.

    key: what its ids end in. form: how calls are written; None: all is text. logprobs: how to show them;
    None: not. numbers: of the events.
    """

    def __init__(
        self,
        key: str,
        form: ToolFormat | None,
        logprobs: LogprobFormat | None,
        numbers: Iterator[int],
    ) -> None:
        self._key = key
        self._form = form
        self._parser = None if form is None else CallParser(form)
        self._logprobs = logprobs
        self._numbers = numbers
        self._items: list[_Item] = []
        self._held: list[ContentLogprob] = []  # of tokens that may become part of a text, or of a call

    def bodies(self, open_status: ItemStatus) -> list[OutputItem]:
        """The items with what there is of them. open_status: of the one that is open."""
        return [
            item.body(open_status if item.status == "in_progress" else item.status) for item in self._items
        ]

    def turn(self) -> Turn:
        """The answer as chat templates expect it back."""
        texts = [item.text for item in self._items if isinstance(item, _Message)]
        calls = [
            FunctionCall(
                type="function_call", call_id=item.call_id, name=item.name, arguments=item.arguments
            ).for_template()
            for item in self._items
            if isinstance(item, _Call)
        ]
        turn: Turn = {"role": "assistant", "content": "\n".join(texts)}
        return turn | {"tool_calls": calls} if calls else turn

    def feed(self, output: RequestOutput) -> Iterator[Event]:
        """The events of further text, to be used up."""
        if self._logprobs is not None:
            self._held += self._logprobs.chat(output.logprobs).content
        last = output.finish_reason is not None
        if self._parser is None:
            if output.text or self._held:
                yield from self._add_text(output.text)
            return
        events = self._parser.feed(output.text)
        for event in events + self._parser.finish() if last else events:
            match event:
                case TextPiece(text):
                    yield from self._add_text(text)
                case CallBegan(_, name):
                    assert self._form is not None
                    call = _Call(self._new_id("fc"), new_call_id(self._form), name)
                    yield from self._begin(call)
                case ArgumentsPiece(_, text):
                    yield from self._add_arguments(text)
        if last and self._held and self._open_message() is not None:
            yield from self._add_text("")

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """The events of the answer's end, to be used up. An answer without anything is an empty message."""
        if not self._items:
            yield from self._begin(_Message(self._new_id("msg")))
        yield from self._close(status)

    def _add_text(self, text: str) -> Iterator[Event]:
        message = self._open_message()
        if message is None:
            message = _Message(self._new_id("msg"))
            yield from self._begin(message)
        scores, self._held = self._held, []
        message.text += text
        message.scores += scores
        yield TextDeltaEvent(
            sequence_number=next(self._numbers),
            item_id=message.id,
            output_index=self._index,
            delta=text,
            logprobs=scores,
        )

    def _add_arguments(self, text: str) -> Iterator[Event]:
        call = self._items[-1]
        assert isinstance(call, _Call)
        self._held = []  # the scores of a call's tokens have no place
        call.arguments += text
        yield ArgumentsDeltaEvent(
            sequence_number=next(self._numbers), item_id=call.id, output_index=self._index, delta=text
        )

    def _begin(self, item: _Item) -> Iterator[Event]:
        if self._items:
            yield from self._close("completed")
        self._items.append(item)
        is_message = isinstance(item, _Message)
        body = item.body("in_progress")
        if isinstance(body, OutputMessage):
            body.content = []
        else:
            self._held = []
        yield ItemEvent(
            type="response.output_item.added",
            sequence_number=next(self._numbers),
            output_index=self._index,
            item=body,
        )
        if is_message:
            yield PartEvent(
                type="response.content_part.added",
                sequence_number=next(self._numbers),
                item_id=item.id,
                output_index=self._index,
                part=OutputText(text="", logprobs=[]),
            )

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        item = self._items[-1]
        if isinstance(item, _Message):
            yield TextDoneEvent(
                sequence_number=next(self._numbers),
                item_id=item.id,
                output_index=self._index,
                text=item.text,
                logprobs=item.scores,
            )
            yield PartEvent(
                type="response.content_part.done",
                sequence_number=next(self._numbers),
                item_id=item.id,
                output_index=self._index,
                part=item.part(),
            )
            item.status = status
        else:
            yield ArgumentsDoneEvent(
                sequence_number=next(self._numbers),
                item_id=item.id,
                output_index=self._index,
                name=item.name,
                arguments=item.arguments,
            )
            item.status = "completed" if item.is_whole else status
        yield ItemEvent(
            type="response.output_item.done",
            sequence_number=next(self._numbers),
            output_index=self._index,
            item=item.body(item.status),
        )

    @property
    def _index(self) -> int:
        return len(self._items) - 1

    def _open_message(self) -> _Message | None:
        item = self._items[-1] if self._items else None
        return item if isinstance(item, _Message) else None

    def _new_id(self, kind: str) -> str:
        """The first item has the response's own id, so that it is known before anything was written."""
        return f"{kind}_{self._key}" if not self._items else f"{kind}_{self._key}_{len(self._items)}"
