"""Grammars, as llguidance reads Lark, of answers that call tools with arguments by their schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tokenizers

from resispec.engine.grammar.compiler import JSON_LAYOUT
from resispec.engine.request import StructuredSpec

from .formats import ToolFormat

Signature = tuple[str, dict[str, Any]]  # a tool's name and the schema of its arguments


def calls_only(
    form: ToolFormat,
    tools: Sequence[Signature],
    tokenizer: tokenizers.Tokenizer,
    *,
    several: bool,
    answer: str | None = None,
) -> str:
    """One call, or with ``several`` one or more, and no text; or what the rule ``answer`` says instead."""
    begin, end = marker(form.begin, tokenizer), marker(form.end, tokenizer)
    space, separator = json.dumps(form.space), json.dumps(form.separator)
    if form.is_list:
        more = f"({separator} object)*" if several else ""
        start = f'{begin} "[" object {more} "]"'
    elif form.is_bare:
        start = f"object ({separator} object)*" if several else "object"
    else:
        call = f"{begin} {space} object {space} {end}"
        start = f"{call} ({separator} {call})*" if several else call
    if answer is None:
        return f"start: {start}\n{_object(form, tools)}"
    return f"start: {start} | answer\nanswer: {answer}\n{_object(form, tools)}"


def rule_of_answer(spec: StructuredSpec) -> str | None:
    """The body of a rule for an answer of that form; None for a form that cannot be part of a grammar."""
    if spec.kind == "choice":
        return " | ".join(json.dumps(choice, ensure_ascii=False) for choice in json.loads(spec.value))
    if spec.kind not in ("json_schema", "json_object"):
        return None
    schema = json.loads(spec.value) if spec.kind == "json_schema" else {"type": "object"}
    return _json(schema)


def calls_in_text(form: ToolFormat, tools: Sequence[Signature], tokenizer: tokenizers.Tokenizer) -> str:
    """Any text; where a call is opened, it goes on as one. For formats whose calls have a marker."""
    begin, end = marker(form.begin, tokenizer), marker(form.end, tokenizer)
    space, separator = json.dumps(form.space), json.dumps(form.separator)
    body = f"{space} object {space} {end}"
    if form.is_list:
        body = f'"[" object ({separator} object)* "]"'
    lazy = "" if begin.startswith("<[") else "[lazy]"
    opened = f"opened{lazy}: TEXT {begin}"
    return f"start: (opened {body})* text\ntext: TEXT\nTEXT: /(.|\\n)*/\n{opened}\n{_object(form, tools)}"


def marker(text: str, tokenizer: tokenizers.Tokenizer) -> str:
    """A marker as a literal, or as the special token that it is."""
    token = tokenizer.token_to_id(text) if text else None
    added = tokenizer.get_added_tokens_decoder()
    if token is not None and token in added and added[token].special:
        return f"<[{token}]>"
    return json.dumps(text)


def _object(form: ToolFormat, tools: Sequence[Signature]) -> str:
    """The rule for a call's object."""
    lines = ["object: " + " | ".join(f"tool_{index}" for index in range(len(tools)))]
    for index, (name, schema) in enumerate(tools):
        head = f'{{"name": {json.dumps(name)}, "{form.arguments}": '
        lines.append(f'tool_{index}: {json.dumps(head)} arguments_{index} "}}"')
        lines.append(f"arguments_{index}: {_json(schema)}")
    return "\n".join(lines)


def _json(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(schema | {'x-guidance': JSON_LAYOUT})}"
