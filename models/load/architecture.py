"""Refuse models that would load and then be silently wrong on the server's KV memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from resispec.models.base import ModelError

# Frequencies that do not depend on the batch. "longrope" and "dynamic" choose them by its longest position,
# so that one request would change another's output.
FIXED_ROPE_TYPES = frozenset({"default", "linear", "yarn", "llama3", "proportional"})
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def check_config(config: Any) -> None:
    """Check a transformers configuration before weights are read. Raises ModelError."""
    for reason in _config_faults(config):
        raise ModelError(f"{_name(config)} cannot be served: {reason}")


def check_model(model: Any) -> None:
    """Check a loaded model: what its configuration does not tell. Raises ModelError."""
    for reason in _model_faults(model):
        raise ModelError(f"{type(model).__name__} cannot be served: {reason}")


def _name(config: Any) -> str:
    return str(config.model_type or type(config).__name__)


def _config_faults(config: Any) -> Iterator[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(config, "is_encoder_decoder", False):
        yield "it is an encoder-decoder; only decoders are supported"
    if config.get_text_config() is not config:
        yield "it reads more than text; use the text model alone"
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        yield "it is not a causal language model"
    # BERT-like classes can be causal, but are so only when told to.
    if getattr(config, "is_decoder", True) is False or getattr(config, "use_bidirectional_attention", False):
        yield "its attention is not causal"
    if getattr(config, "quantization_config", None) is not None:
        yield "its safetensors are quantised; use unquantised weights or a GGUF file"
    yield from _rope_faults(config)
    other = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if other:
        yield f"it has layers of the kind {', '.join(other)}; supported: {', '.join(sorted(LAYER_TYPES))}"
    if getattr(config, "attention_chunk_size", None) and not getattr(config, "layer_types", None):
        yield "it uses chunked attention"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        yield "it caps its attention scores (attn_logit_softcapping), which is not supported"
    if getattr(config, "num_kv_shared_layers", None):
        yield "its layers share keys and values, which is not supported"


def _rope_faults(config: Any) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer.
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for entry in nested or [parameters]:
        kind = entry.get("rope_type", entry.get("type", "default"))
        if kind not in FIXED_ROPE_TYPES:
            yield (
                f"its rotary scaling {kind!r} goes by the longest position in the batch, so requests would "
                f"change each other's output; supported: {', '.join(sorted(FIXED_ROPE_TYPES))}"
            )


def _model_faults(model: Any) -> Iterator[str]:
    if getattr(model, "_is_stateful", False):
        yield "it keeps a recurrent state besides its KV cache"
    if not getattr(model, "_supports_attention_backend", False):
        yield "its attention does not go through transformers' attention interface"
    for name, module in model.named_modules():
        if getattr(module, "is_causal", None) is False:
            yield f"{name} is not causal"
        if getattr(module, "sinks", None) is not None:
            yield f"{name} has attention sinks, which are not supported"
