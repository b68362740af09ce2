"""What stands in for a GPU on a machine that has none."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from resispec.models.device import Recording

_OURS = re.compile(r"/(models|engine)/[^/]+(/[^/]+)?\.py$")


class Again:
    """A recorder that keeps the work, and replays by doing it again: outputs stay where they were."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, run: Callable[[], Any]) -> Recording[Any]:
        self.recorded += 1
        outputs = run()

        def replay() -> None:
            self.replayed += 1
            fresh = run()
            outputs.logits.copy_(fresh.logits)
            outputs.hidden.copy_(fresh.hidden)

        return Recording(outputs, replay)


class Waits(TorchDispatchMode):
    """Notes what a GPU would be waited for: reads by the host, and tensors made of the host's numbers.

    Such things cannot be recorded, either. What FlexAttention does within is not seen: it is one kernel.
    """

    READS = ("item", "is_nonzero", "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._putting = False

    @contextmanager
    def putting(self) -> Iterator[None]:
        """Numbers are handed over within in a way that does not wait."""
        self._putting = True
        yield
        self._putting = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._putting and _waits(func.name().split("::")[-1].split(".")[0], args):
            places = [frame for frame in traceback.extract_stack() if _OURS.search(frame.filename)]
            where = f"{places[-1].filename}:{places[-1].lineno}" if places else "elsewhere"
            self.seen.append(f"{func.name()} in {where}")
        return func(*args, **(kwargs or {}))


def _waits(name: str, args: tuple[Any, ...]) -> bool:
    if name == "lift_fresh":
        return bool(args[0].dim() > 0)  # a single number is no copy, it goes along with the call
    if name in ("index", "index_put_"):
        return any(isinstance(index, Tensor) and index.dtype.itemsize == 1 for index in args[1])
    return name in Waits.READS
