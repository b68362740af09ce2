"""What to simulate: frozen, checked when made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..bench.settings import Tree, at_least
from ..config import MOST_DEPTH, MOST_NODES, ConfigError

USUAL_KEPT = (0.65, 0.6, 0.55)  # a draft about as good as the default one


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """Raises ConfigError, naming the option."""

    costs: str | None = None  # cpu, cuda or a file; None: the newest table measured on this machine
    kept: tuple[float, ...] = ()  # of a single child by depth; deeper ones go on as the last
    trace: Path | None = None  # instead: as a bench recorded it
    batch: tuple[int, ...] = (1, 4, 16, 64, 256)
    trees: tuple[Tree, ...] = (Tree(4, 2), Tree(8, 3), Tree(16, 4))  # of the mode fixed
    max_nodes: int = MOST_NODES  # of the mode auto
    max_depth: int = MOST_DEPTH
    temperature: float = 1.0
    tokens: int = 200  # decoded for each request
    prompt: int = 100  # tokens of each prompt

    def __post_init__(self) -> None:
        if self.kept and self.trace is not None:
            raise ConfigError("give kept or a trace, not both", "trace")
        for rate in self.kept:
            if not 0 <= rate < 1:
                raise ConfigError(f"kept has {rate:g}; chances are from 0 to below 1", "kept")
        if not self.batch:
            raise ConfigError("batch is empty; name at least one", "batch")
        at_least(min(self.batch), 1, "batch")
        at_least(self.temperature, 0, "temperature")
        for name in ("max_nodes", "max_depth", "tokens", "prompt"):
            at_least(getattr(self, name), 1, name)
