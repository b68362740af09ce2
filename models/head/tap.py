"""States from inside the target, for drafts that read more than its last ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base import ModelError
from ..layers import decoder_layers


class LayerInputs:
    """Notes what goes into some layers of a model while it runs, and joins it to one state a token."""

    def __init__(self, model: Any, numbers: Sequence[int], join: Callable[[Tensor], Tensor]) -> None:
        """``numbers`` count layers from 0; ``join`` maps ``[N, len(numbers) * H]`` to ``[N, F]``.

        Raises ModelError for a layer that is not there.
        """
        _, layers = decoder_layers(model)
        if not all(0 <= number < len(layers) for number in numbers):
            raise ModelError(f"the draft reads layers {list(numbers)}, but the target has {len(layers)}")
        self._join = join
        self._inputs: list[Tensor | None] = [None] * len(numbers)
        for place, number in enumerate(numbers):
            layers[number].register_forward_pre_hook(self._note(place), with_kwargs=True)

    def take(self) -> Tensor:
        """The states of the step that has just run: ``[N, F]``."""
        inputs, self._inputs = self._inputs, [None] * len(self._inputs)
        noted = [state for state in inputs if state is not None]
        assert len(noted) == len(inputs), "the model ran without its layers"
        return self._join(torch.cat(noted, dim=-1)[0])

    def _note(self, place: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs[place] = args[0] if args else kwargs["hidden_states"]

        return hook
