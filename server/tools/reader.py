"""A chat answer taken apart as it grows: reasoning, text and tool calls."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field

from ..schemas.tools import FunctionCallBody, FunctionCallDelta, ToolCallBody, ToolCallDelta
from .formats import ToolFormat
from .parser import ArgumentsPiece, CallBegan, CallParser, Event, TextPiece
from .reasoning import ReasoningSplitter

_LETTERS = string.ascii_letters + string.digits


@dataclass(slots=True)
class News:
    """What a piece of the answer added."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class AnswerReader:
    """Of one choice.

    form: None if no tools were given; nothing is a call then. reasoning: None if there is none to expect.
    """

    def __init__(self, form: ToolFormat | None, reasoning: ReasoningSplitter | None = None) -> None:
        self._reasoning = reasoning
        self._parser = CallParser(form) if form is not None else None
        self._form = form

    @property
    def has_called(self) -> bool:
        return self._parser is not None and self._parser.num_calls > 0

    def feed(self, text: str, *, last: bool) -> News:
        """News from ``text``. last: the answer ends with it."""
        thought = ""
        if self._reasoning is not None:
            thought, text = self._reasoning.feed(text, last=last)
        if self._parser is None:
            return News(thought, text)
        events = self._parser.feed(text)
        news = self._news(events + self._parser.finish() if last else events)
        news.reasoning = thought
        return news

    def _news(self, events: list[Event]) -> News:
        news = News()
        for event in events:
            match event:
                case TextPiece(text):
                    news.content += text
                case CallBegan(index, name):
                    assert self._form is not None
                    call_id = new_call_id(self._form)
                    function = FunctionCallDelta(name=name, arguments="")
                    news.calls.append(
                        ToolCallDelta(index=index, id=call_id, type="function", function=function)
                    )
                case ArgumentsPiece(index, text):
                    if news.calls and news.calls[-1].index == index:
                        function = news.calls[-1].function
                        function.arguments = (function.arguments or "") + text
                    else:
                        delta = ToolCallDelta(index=index, function=FunctionCallDelta(arguments=text))
                        news.calls.append(delta)
        return news


def new_call_id(form: ToolFormat) -> str:
    """A fresh id, of the kind that the model's template takes."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(9 if form.short_ids else 24))
    return letters if form.short_ids else f"call_{letters}"


def whole_calls(calls: list[ToolCallDelta]) -> list[ToolCallBody]:
    """The calls of a whole answer, whose news came at once."""
    return [
        ToolCallBody(
            id=call.id or "",
            function=FunctionCallBody(name=call.function.name or "", arguments=call.function.arguments or ""),
        )
        for call in calls
    ]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What may be in an answer besides text."""

    tools: ToolFormat | None = None  # how calls are written; None: there are none
    reasons: bool = False  # the model may reason first
    is_reasoning: bool = False  # the prompt ends inside the reasoning

    def reader(self) -> AnswerReader:
        splitter = ReasoningSplitter(is_open=self.is_reasoning) if self.reasons else None
        return AnswerReader(self.tools, splitter)
