"""Calls read back from text: every format, cut into pieces at every place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resispec.server.tools.formats import HERMES, LLAMA3, MISTRAL, ToolFormat, tool_format
from resispec.server.tools.parser import ArgumentsPiece, CallBegan, CallParser, TextPiece

WEATHER = '{"city": "Par\\"is}", "days": [1, {"a": "]"}]}'


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and (name, arguments) of every call."""
    parser = CallParser(form)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    text = ""
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case TextPiece(piece):
                text += piece
            case CallBegan(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ArgumentsPiece(index, piece):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + piece)
    assert parser.num_calls == len(calls)
    return text, calls


def call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


TWO = (call("a", "{}"), call("b", WEATHER))
CASES: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, "plain <b>text</b>", "plain <b>text</b>", []),
    (HERMES, f"<tool_call>\n{call('a', WEATHER)}\n</tool_call>", "", [("a", WEATHER)]),
    (
        HERMES,
        "Let me see.\n" + "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in TWO),
        "Let me see.",
        [("a", "{}"), ("b", WEATHER)],
    ),
    (HERMES, f"<tool_call>\n{call('a', '{}')}\n</tool_c", "", [("a", "{}")]),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "a"}</tool_call>', "", [("a", '{"x": 1}')]),
    (HERMES, '<tool_call>{"mood": 1}</tool_call>', '<tool_call>{"mood": 1}</tool_call>', []),
    (HERMES, "<tool_call>\nnot json", "<tool_call>\nnot json", []),
    (HERMES, f"<tool_call>{call('a', '{}')}</tool_call> and text", "and text", [("a", "{}")]),
    (HERMES, '<tool_call>\n{"name": "a", "arguments": {"x": "cut', "", [("a", '{"x": "cut')]),
    (HERMES, "ends in <tool_", "ends in <tool_", []),
    (MISTRAL, f"[TOOL_CALLS] [{call('a', WEATHER)}]", "", [("a", WEATHER)]),
    (MISTRAL, f"[TOOL_CALLS][{call('a', '{}')}, {call('b', WEATHER)}]", "", [("a", "{}"), ("b", WEATHER)]),
    (MISTRAL, "[no] calls", "[no] calls", []),
    (LLAMA3, call("a", WEATHER, "parameters"), "", [("a", WEATHER)]),
    (LLAMA3, f"<|python_tag|>{call('a', '{}', 'parameters')}", "", [("a", "{}")]),
    (
        LLAMA3,
        f"{call('a', '{}', 'parameters')}; {call('b', WEATHER, 'parameters')}",
        "",
        [("a", "{}"), ("b", WEATHER)],
    ),
    (LLAMA3, '{"x": 1}', '{"x": 1}', []),
    (LLAMA3, "Hello {you}", "Hello {you}", []),
]


@pytest.mark.parametrize(("form", "text", "shown", "calls"), CASES)
def test_pieces_of_any_size(form: ToolFormat, text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    expected = (shown, calls)
    assert read(form, [text]) == expected
    assert read(form, list(text)) == expected
    for place in range(1, len(text)):
        assert read(form, [text[:place], text[place:]]) == expected, text[:place]


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser(HERMES)
    assert parser.feed('<tool_call>\n{"name": "a", "arguments": {"x') == [
        CallBegan(0, "a"),
        ArgumentsPiece(0, '{"x'),
    ]
    assert parser.feed('": 1') == [ArgumentsPiece(0, '": 1')]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", MISTRAL),
        ('{% if tools %}Environment: ipython {"name": n, "parameters": p}{% endif %}', LLAMA3),
        ("{% if tools %}something else{% endif %}", None),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_format(template: str, form: ToolFormat | None) -> None:
    assert tool_format(template) is form


def test_cases_are_json() -> None:
    value: Any = json.loads(WEATHER)
    assert value["city"] == 'Par"is}'
