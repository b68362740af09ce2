"""What a public EAGLE checkpoint says of itself, in either of its two layouts.

The authors' own layout is a Llama configuration with few additions; the speculators library nests one in
``transformer_layer_config``. What this server would get wrong is refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import ModelError
from ..load.architecture import FIXED_ROPE_TYPES

EAGLE, EAGLE3 = "eagle", "eagle3"


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Sizes and habits of an EAGLE head."""

    generation: str  # EAGLE (which is also that of EAGLE-2) or EAGLE3
    layer: Any  # LlamaConfig of its one decoder layer
    norm_before_residual: bool  # EAGLE-3: the residual stream begins with the normed state
    target_hidden_size: int  # of the target
    target_layers: tuple[int, ...] | None  # EAGLE-3: whose inputs it reads; None: a low, a middle, a high one
    made_for: str | None  # the target's name, where the checkpoint tells it

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """Layers, of the target's ``num_layers``, whose inputs it reads."""
        return self.target_layers or (2, num_layers // 2, num_layers - 3)


def read_config(folder: Path, names: frozenset[str]) -> EagleConfig:
    """The configuration in ``folder``; ``names`` are those of its tensors, which tell generations apart.

    Raises ModelError naming what is not supported.
    """
    try:
        values = json.loads((folder / "config.json").read_text())
        if not isinstance(values, dict):
            raise ValueError("no object")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {folder / 'config.json'}: {error}") from error
    try:
        config = _speculators(values) if "speculators_model_type" in values else _original(values, names)
        _check_layer(config.layer)
    except ModelError as error:
        raise ModelError(f"the EAGLE head in {folder} cannot be used: {error}") from error
    return config


def _speculators(values: dict[str, Any]) -> EagleConfig:
    generation = values["speculators_model_type"]
    if generation not in (EAGLE, EAGLE3):
        raise ModelError(f"speculators_model_type is {generation!r}; {EAGLE} and {EAGLE3} are supported")
    for name in ("layernorms", "norm_before_fc"):
        if values.get(name):
            raise ModelError(f"{name} is set, which is not supported")
    layer = values.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ModelError("transformer_layer_config is missing")
    if (kind := layer.get("model_type", "llama")) != "llama":
        raise ModelError(f"its layer is of the kind {kind!r}; only llama is supported")
    verifier = (values.get("speculators_config") or {}).get("verifier") or {}
    return EagleConfig(
        generation,
        _llama(layer),
        bool(values.get("norm_before_residual")),
        int(values.get("target_hidden_size") or layer["hidden_size"]),
        _numbers(values.get("eagle_aux_hidden_state_layer_ids")),
        verifier.get("name_or_path"),
    )


def _original(values: dict[str, Any], names: frozenset[str]) -> EagleConfig:
    inner = values.get("eagle_config") or {}
    if not inner.get("use_aux_hidden_state", True):
        raise ModelError("eagle_config.use_aux_hidden_state is off, which is not supported")
    if inner.get("eagle_aux_hidden_state_layer_ids") is not None:
        raise ModelError(
            "eagle_config.eagle_aux_hidden_state_layer_ids is set: some servers count by it what goes into "
            "layers, some what comes out. Move it to the top of config.json, as numbers of layers, from 0, "
            "whose inputs are read"
        )
    eagle3 = any(name.startswith("midlayer.") for name in names)
    return EagleConfig(
        EAGLE3 if eagle3 else EAGLE,
        _llama(values),
        bool(values.get("norm_before_residual")),
        int(values.get("target_hidden_size") or values.get("hidden_size") or 0),
        _numbers(values.get("eagle_aux_hidden_state_layer_ids")),
        None,
    )


def _llama(values: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if not isinstance(values.get(name), int):
            raise ModelError(f"{name} is {values.get(name)!r}, not a number")
    known = {name: value for name, value in values.items() if name not in ("model_type", "architectures")}
    # Both layouts hold one layer whatever else they say.
    return LlamaConfig(**{**known, "num_hidden_layers": 1})


def _numbers(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(item, int) for item in value):
        raise ModelError(f"eagle_aux_hidden_state_layer_ids is {value!r}; three layers are supported")
    return tuple(value)


def _check_layer(layer: Any) -> None:
    kind = (layer.rope_parameters or {}).get("rope_type", "default")
    refused = (
        (layer.hidden_act != "silu", f"hidden_act is {layer.hidden_act!r}; silu is supported"),
        (layer.attention_bias, "attention_bias is set, which is not supported"),
        (layer.mlp_bias, "mlp_bias is set, which is not supported"),
        (
            kind not in FIXED_ROPE_TYPES,
            f"its rotary scaling is {kind!r}; supported: {', '.join(sorted(FIXED_ROPE_TYPES))}",
        ),
        (
            bool(getattr(layer, "use_sliding_window", False)),
            "use_sliding_window is set, which is not supported",
        ),
    )
    for applies, reason in refused:
        if applies:
            raise ModelError(reason)
