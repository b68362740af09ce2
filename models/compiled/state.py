"""How far a compilation has got: a value that travels to whoever watches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CompileState(StrEnum):
    OFF = "off"  # not asked for
    BUILDING = "building"  # the model runs as it is meanwhile
    ON = "on"
    FAILED = "failed"  # the model runs as it is, and will


@dataclass(frozen=True, slots=True)
class CompileStatus:
    state: CompileState = CompileState.OFF
    note: str = ""  # a sentence: how long it took, or why it failed; empty: off


NOT_COMPILED = CompileStatus()
