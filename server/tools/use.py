"""What a request's tools mean: what the template is told, what the answer is held to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from resispec.engine.request import StructuredSpec

from ..errors import invalid
from ..schemas.chat import ChatRequest
from ..schemas.responses import ResponsesRequest
from ..schemas.tools import AskedTools, FunctionDefinition
from ..structured import Grammars, Wanted, asked_form, refuse_other_rules
from .formats import ToolFormat, tool_format
from .grammar import Signature, calls_in_text, calls_only, rule_of_answer

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """form: how calls are written. structured: the grammar of the answer; None: calls are only looked for."""

    form: ToolFormat
    tools: list[dict[str, Any]]  # for the template
    structured: StructuredSpec | None
    has_text: bool  # any text may stand beside the calls


async def tool_use(
    body: ChatRequest | ResponsesRequest,
    template: object,
    tokenizer: tokenizers.Tokenizer,
    grammars: Grammars,
) -> ToolUse | None:
    """None: the answer calls nothing. Raises ApiError 400 naming the tool and the way into its schema."""
    asked = body.asked_tools
    _check_names(asked)
    if not asked.functions or asked.choice == "none":
        return None
    form = tool_format(template) if isinstance(template, str) else None
    if form is None:
        raise invalid("tools", "this model's chat template has no place for tools, or none this server knows")
    answer = _answer_beside_calls(asked, asked_form(body))
    forced = asked.choice != "auto"
    strict = any(function.strict for function in asked.functions) and not form.is_bare
    structured = None
    if forced or strict or answer is not None:
        signatures = await _signatures(asked, grammars)
        # Beside another form there is no telling whether the model will call at all, but how it will.
        several = asked.several and asked.named is None
        text = (
            calls_only(form, signatures, tokenizer, several=several, answer=answer)
            if forced or answer is not None
            else calls_in_text(form, signatures, tokenizer)
        )
        structured = StructuredSpec("grammar", text)
        refuse_other_rules(body, "tools")
        await grammars.check(structured, "tools")
    has_text = not forced and answer is None
    return ToolUse(form, [_for_template(function) for function in asked.functions], structured, has_text)


def _answer_beside_calls(asked: AskedTools, wanted: Wanted | None) -> str | None:
    """The rule for an answer in the form that is asked for besides tools; None: there is none."""
    if wanted is None:
        return None
    spec, field = wanted
    if asked.choice != "auto":
        raise invalid(field.partition(".")[0], "not together with a tool_choice that asks for a call")
    rule = rule_of_answer(spec)
    if rule is None:
        raise invalid(field, "not together with tools; json, json_object and choice are")
    return rule


async def _signatures(asked: AskedTools, grammars: Grammars) -> list[Signature]:
    signatures: list[Signature] = []
    for index, function in enumerate(asked.functions):
        if asked.named in (None, function.name):
            schema = function.parameters or NO_ARGUMENTS
            field = f"tools[{index}]{asked.prefix}.parameters"
            if schema.get("type", "object") != "object":
                raise invalid(f"{field}.type", "the arguments of a call are an object; send 'object'")
            spec = StructuredSpec("json_schema", json.dumps(schema))
            await grammars.check(spec, field)
            signatures.append((function.name, {"type": "object"} | schema))
    return signatures


def _check_names(asked: AskedTools) -> None:
    names: set[str] = set()
    for index, function in enumerate(asked.functions):
        if function.name in names:
            field = f"tools[{index}]{asked.prefix}.name"
            raise invalid(field, f"two tools are called {function.name!r}")
        names.add(function.name)
    if not asked.functions and asked.choice not in ("none", "auto"):
        raise invalid("tool_choice", "only together with tools")
    if asked.named is not None and asked.named not in names:
        raise invalid(
            f"tool_choice{asked.prefix}.name",
            f"{asked.named[:64]!r} is none of the tools: {_some(asked.functions)}",
        )


def _some(functions: Sequence[FunctionDefinition]) -> str:
    names = [function.name for function in functions[:8]]
    return ", ".join(names + ["..."] * (len(functions) > len(names)))


def _for_template(asked: FunctionDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": asked.name, "description": asked.description or ""}
    return {"type": "function", "function": function | {"parameters": asked.parameters or NO_ARGUMENTS}}
