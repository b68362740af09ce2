"""What a chat request's tools mean: what the template is told, what the answer is held to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tokenizers

from resispec.engine.request import StructuredSpec

from ..errors import invalid
from ..schemas.chat import ChatRequest
from ..schemas.tools import NamedToolChoice, Tool
from ..structured import Grammars, refuse_other_rules
from .formats import ToolFormat, tool_format
from .grammar import Signature, calls_in_text, calls_only

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """form: how calls are written. structured: the grammar of the answer; None: calls are only looked for."""

    form: ToolFormat
    tools: list[dict[str, Any]]  # for the template
    structured: StructuredSpec | None


async def tool_use(
    body: ChatRequest, template: object, tokenizer: tokenizers.Tokenizer, grammars: Grammars
) -> ToolUse | None:
    """None: the answer is text. Raises ApiError 400 naming the tool and the way into its schema."""
    tools, choice = body.tools or [], body.tool_choice or "auto"
    _check_names(tools, choice)
    if not tools or choice == "none":
        return None
    form = tool_format(template) if isinstance(template, str) else None
    if form is None:
        raise invalid("tools", "this model's chat template has no place for tools, or none this server knows")
    forced = choice != "auto"
    strict = forced or any(tool.function.strict for tool in tools)
    structured = None
    if forced and (body.response_format or body.structured_outputs):
        given = "structured_outputs" if body.structured_outputs else "response_format"
        raise invalid(given, "not together with a tool_choice that asks for a call")
    if strict and (forced or not (form.is_bare or body.response_format or body.structured_outputs)):
        if isinstance(choice, NamedToolChoice):
            tools = [tool for tool in tools if tool.function.name == choice.function.name]
        signatures = await _signatures(body.tools or [], tools, grammars)
        several = choice == "required" and body.parallel_tool_calls is not False
        text = (
            calls_only(form, signatures, tokenizer, several=several)
            if forced
            else calls_in_text(form, signatures, tokenizer)
        )
        structured = StructuredSpec("grammar", text)
        refuse_other_rules(body, "tools")
        await grammars.check(structured, "tools")
    return ToolUse(form, [_for_template(tool) for tool in body.tools or []], structured)


async def _signatures(all_tools: list[Tool], used: list[Tool], grammars: Grammars) -> list[Signature]:
    signatures: list[Signature] = []
    for index, tool in enumerate(all_tools):
        if tool in used:
            schema = tool.function.parameters or NO_ARGUMENTS
            spec = StructuredSpec("json_schema", json.dumps(schema))
            await grammars.check(spec, f"tools[{index}].function.parameters")
            signatures.append((tool.function.name, {"type": "object"} | schema))
    return signatures


def _check_names(tools: list[Tool], choice: object) -> None:
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid(f"tools[{index}].function.name", f"two tools are called {name!r}")
    if not tools and choice not in ("none", "auto"):
        raise invalid("tool_choice", "only together with tools")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise invalid("tool_choice.function.name", f"{choice.function.name!r} is none of the tools")


def _for_template(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.function.name, "description": tool.function.description or ""}
    return {
        "type": "function",
        "function": function | {"parameters": tool.function.parameters or NO_ARGUMENTS},
    }
