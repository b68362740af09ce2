"""The contract of a draft in training."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from .batches import Batch


class Trainee(Protocol):
    """A draft whose states are read by the target's own output matrix, and compared with the target's."""

    @property
    def module(self) -> nn.Module:
        """What is trained of it requires a gradient, and is float32."""
        ...

    @property
    def vocab_ids(self) -> Tensor:
        """[V] int64, ascending: the tokens it may draft, as rows of the target's output matrix."""
        ...

    @property
    def levels(self) -> int:
        """Levels of a tree at which it differs: 1 where it reads nothing but tokens."""
        ...

    def states(self, batch: Batch, passes: int) -> list[Tensor]:
        """The states ``[B, N, H]`` of levels ``1 .. passes`` at every position, for the token after it."""
        ...

    def save(self, folder: Path) -> None:
        """Write what `--draft` loads. Each file appears whole or not at all, the config last."""
        ...

    def describe(self) -> str:
        """What it is, for its card: Markdown from the title to the figures."""
        ...
