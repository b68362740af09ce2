"""States from inside the target, for drafts that read more than its last ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..base import ModelError
from ..layers import decoder_layers


class LayerInputs:
    """Notes what goes into some layers of a model while it runs; as a context, until the context ends."""

    def __init__(self, model: Any, numbers: Sequence[int]) -> None:
        """``numbers`` count layers from 0. Raises ModelError for a layer that is not there."""
        _, layers = decoder_layers(model)
        if not all(0 <= number < len(layers) for number in numbers):
            raise ModelError(f"the draft reads layers {list(numbers)}, but the target has {len(layers)}")
        self._inputs: list[Tensor | None] = [None] * len(numbers)
        self._hooks = [
            layers[number].register_forward_pre_hook(self._note(place), with_kwargs=True)
            for place, number in enumerate(numbers)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def take(self) -> list[Tensor]:
        """Of the forward that has just run on ``[B, N]`` tokens, the input ``[B, N, H]`` of each layer."""
        inputs, self._inputs = self._inputs, [None] * len(self._inputs)
        noted = [state for state in inputs if state is not None]
        assert len(noted) == len(inputs), "the model ran without its layers"
        return noted

    def _note(self, place: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs[place] = args[0] if args else kwargs["hidden_states"]

        return hook


class StateTap:
    """The states that a draft reads, made of a model's last ones and of what goes into some layers."""

    def __init__(self, model: Any, numbers: Sequence[int], join: Callable[[Tensor, Tensor], Tensor]) -> None:
        """``numbers`` count layers from 0; ``join`` maps last states ``[N, H]`` and these layers' inputs
        ``[N, len(numbers) * H]`` to ``[N, F]``.

        Raises ModelError for a layer that is not there.
        """
        self._inputs = LayerInputs(model, numbers)
        self._join = join

    def take(self, last: Tensor) -> list[Tensor]:
        """What the states are made of, ``[N, H]`` each, of the packed step that has just run and ended with
        ``last [N, H]``.
        """
        return [last, *(state[0] for state in self._inputs.take())]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The states ``[N, F]`` that ``parts``, as `take` gives them, make."""
        return self._join(parts[0], torch.cat(tuple(parts[1:]), dim=-1))
