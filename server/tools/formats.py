"""How families of models write tool calls; the chat template tells which one a model is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is ``begin`` and a JSON object with ``name`` and ``arguments``, then ``end``."""

    name: str
    begin: str  # opens a call, or a list of calls; may be a special token
    end: str  # closes it
    arguments: str = "arguments"  # the object's key
    is_list: bool = False  # ``begin`` opens a JSON list of all calls
    is_bare: bool = False  # the answer may also begin with the object itself, without ``begin``
    space: str = ""  # between the markers and the object, and between two calls
    separator: str = ""  # between two calls, besides the markers

    @property
    def short_ids(self) -> bool:
        """Whether the template wants call ids of nine characters."""
        return self.name == "mistral"


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", space="\n", separator="\n")  # Qwen's, too
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", is_list=True, separator=", ")
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", "", arguments="parameters", is_bare=True, separator="; ")


def tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template lays out, or None if it has no place for tools."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" in template:
        return HERMES
    if '"parameters":' in template and "ipython" in template.lower():
        return LLAMA3
    return None
