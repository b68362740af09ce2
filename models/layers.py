"""Where a transformers model keeps its layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from .base import ModelError


def decoder_layers(model: Any) -> tuple[str, nn.ModuleList]:
    """The name and the list of a causal model's layers. Raises ModelError for one that keeps no list."""
    count = int(model.config.num_hidden_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, module
    raise ModelError(f"{type(model).__name__} keeps no list of its {count} layers, so none can be chosen")
