"""What to measure on a pair: frozen, checked when made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import QUANTIZATIONS, ConfigError
from .uniformity import fewest_answers


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


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What to ask of a running server. Raises ConfigError, naming the option, for what cannot be tested."""

    url: str
    target: str = "default"
    temperature: float = 1.0
    answers: int = 2000  # over all prompts
    tokens: int = 4  # of an answer; the first comes with the prompt, the others from trees
    verifier: str | None = None  # None: the server's
    seed: int = 0  # of the tests' own coins; the server draws as it likes
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"  # of the weights, as the server's are
    offline: bool = False

    def __post_init__(self) -> None:
        if self.quantization not in QUANTIZATIONS:
            raise ConfigError(
                f"the server's weights are {self.quantization!r}; its law can be computed here for "
                f"{', '.join(QUANTIZATIONS)}"
            )
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"--temperature is {self.temperature}; it must be above 0")
        if not 1 <= self.tokens <= 8:
            raise ConfigError(f"--tokens is {self.tokens}; it must be from 1 to 8")
        if self.answers < fewest_answers(self.tokens):
            raise ConfigError(
                f"--answers is {self.answers}; with {self.tokens} tokens each, at least "
                f"{fewest_answers(self.tokens)} are needed"
            )


def parse_children(text: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers. Raises ConfigError."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"--children is {text!r}; give numbers with commas between them") from None
