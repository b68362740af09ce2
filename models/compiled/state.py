"""How far a compilation has got: a value that travels to whoever watches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CompileState(StrEnum):
    OFF = "off"  # not asked for, or of no use
    BUILDING = "building"  # the model runs as it is meanwhile
    ON = "on"
    FAILED = "failed"  # the model runs as it is, and will


@dataclass(frozen=True, slots=True)
class CompileStatus:
    state: CompileState = CompileState.OFF
    note: str = ""  # a sentence: how long it took, or why it is not on; empty: not asked for


NOT_COMPILED = CompileStatus()
NOT_NEEDED = CompileStatus(
    CompileState.OFF,
    "The target's layers are not compiled: they run in kernels of our own here, which are quicker.",
)
