"""From the items of a request to the turns that chat templates lay out."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import invalid
from ..schemas.response_tools import FunctionCall
from ..schemas.responses import FunctionCallOutput, InputItem
from .store import Turn


def as_turns(items: Sequence[InputItem], earlier: Sequence[Turn]) -> tuple[Turn, ...]:
    """``earlier`` and what ``items`` add to it. Calls belong to the assistant's message that they follow.

    Raises ApiError 400 for the output of a call that is nowhere before it.
    """
    turns = list(earlier)
    names = {call["id"]: call["function"]["name"] for turn in earlier for call in turn.get("tool_calls", ())}
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall):
            names[item.call_id] = item.name
            if turns and turns[-1]["role"] == "assistant":
                last = turns.pop()
            else:
                last = {"role": "assistant", "content": ""}
            turns.append(last | {"tool_calls": [*last.get("tool_calls", ()), item.for_template()]})
        elif isinstance(item, FunctionCallOutput):
            name = names.get(item.call_id)
            if name is None:
                raise invalid(f"input[{index}].call_id", f"no call before it is {item.call_id[:64]!r}")
            turns.append({"role": "tool", "tool_call_id": item.call_id, "name": name, "content": item.output})
        else:
            turns.append(item.for_template())
    return tuple(turns)
