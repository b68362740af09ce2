"""What to measure on a pair: frozen, checked when made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import ConfigError


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Raises ConfigError, naming the option, for what cannot be measured."""

    target: str = "default"
    draft: str = "default"
    temperature: float = 1.0
    positions: int = 512  # of the target's text, over all prompts
    children: tuple[int, ...] = (1, 2, 3, 4, 8)
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"--temperature is {self.temperature}; it must be above 0")
        if self.positions < 2:
            raise ConfigError(f"--positions is {self.positions}; it must be 2 or more")
        if not self.children or min(self.children) < 1 or max(self.children) > 64:
            raise ConfigError("--children takes numbers from 1 to 64, with commas between them")


def parse_children(text: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers. Raises ConfigError."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"--children is {text!r}; give numbers with commas between them") from None
