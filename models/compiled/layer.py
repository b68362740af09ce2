"""A decoder layer that runs compiled code on its own weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from resispec.models.attention import StepContext
from resispec.models.fuse.layer import FusedLayer

from .spec import LayerSpec, layer_weights

Run = Callable[[list[Tensor]], list[Tensor]]


class CompiledLayer:
    """Takes the place of a fused layer's own arithmetic."""

    def __init__(self, layer: FusedLayer, specs: Mapping[str, LayerSpec], folder: Path) -> None:
        """folder: with a package for each function of ``specs``. Raises RuntimeError for a damaged one."""
        attention = layer.self_attn
        self._layer, self._window, self._scaling = attention.layer, attention.window, attention.scaling
        weights = layer_weights(layer)
        self._weights: list[Mapping[str, Tensor]] = []  # compiled code reads them where they are
        self._functions = {
            kind: self._bind(folder / f"{kind}.pt2", _laid_out(weights, spec.weights))
            for kind, spec in specs.items()
        }

    def run(
        self, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor], step: StepContext
    ) -> Tensor | None:
        """hidden: [N, H] -> [N, H]; the step's keys and values are in their KV rows afterwards.

        None: steps of this kind were not compiled, and nothing has been done.
        """
        alone = step.alone(self._window)
        if alone is None and "begin" not in self._functions:
            return None
        cos, sin = step.rotation(*position_embeddings)
        keys, values = step.memory.layer(self._layer)
        if alone is not None:
            keys = keys.narrow(0, alone.kv_start, alone.kv_length)
            values = values.narrow(0, alone.kv_start, alone.kv_length)
            return self._functions["single"]([hidden, cos, sin, keys, values, alone.row])[0]
        (queries,) = self._functions["begin"]([hidden, cos, sin, keys, values, step.inputs.rows])
        attended = step.attend(queries, self._layer, self._scaling, self._window)
        return self._functions["end"]([attended.flatten(1).contiguous(), hidden])[0]

    def _bind(self, path: Path, weights: Mapping[str, Tensor]) -> Run:
        from torch._inductor import aoti_load_package

        loaded: Any = aoti_load_package(str(path))
        used = {name: weights[name] for name in loaded.get_constant_fqns()}
        loaded.load_constants(used, check_full_update=True, user_managed=True)
        self._weights.append(used)
        run: Run = loaded.loader.run  # the package's own call sorts arguments by name first: 40 us
        return run


def bytes_of_weights(layers: list[FusedLayer]) -> int:
    """Of all layers together."""
    sizes = [
        weight.numel() * weight.dtype.itemsize for one in layers for weight in layer_weights(one).values()
    ]
    return sum(sizes)


def _laid_out(weights: Mapping[str, Tensor], kind: str) -> Mapping[str, Tensor]:
    if kind != "plain":
        return weights
    return {name: weight.to_dense() if weight.is_mkldnn else weight for name, weight in weights.items()}
