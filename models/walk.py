"""A decoder's forward part by part, without what transformers does around the parts in every step.

Masks nobody reads, a copy of the list of layers, hooks looked for at every module, output objects: together
a twentieth of a step of one token through a small model on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import STEP_KEYWORD, StepContext, run_model
from .base import StepInputs
from .fuse.layer import FusedLayer
from .fuse.native import NativeLayers, NativeRuns, Watch
from .kv import KVGeometry, KVMemory
from .rotary import RotaryTable

_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}


class Walk:
    """Embeddings, fused layers, last norm, output matrix. Hooks at layers are called, others are not."""

    def __init__(self, model: Any) -> None:
        """model: a causal model whose decoder has these parts and no others."""
        self._model = model
        decoder = model.get_decoder()
        self._embed, self._norm = decoder.embed_tokens, decoder.norm
        self._rotary = RotaryTable(decoder.rotary_emb)
        self._runs = NativeRuns(decoder.layers)

    def run(self, step: StepContext) -> tuple[Tensor, Tensor]:
        """Logits [L, V] where they are wanted, and last hidden states [N, H], in the model's dtype."""
        inputs = step.inputs
        hidden: Tensor = self._embed.forward(inputs.token_ids)
        rotation = self._rotary.rotation(hidden, step)
        for part in self._runs.parts(_watch):
            if isinstance(part, NativeLayers):
                hidden = _shown(part.layers[0], hidden)
                done = part.run(hidden, rotation, step)
                if done is None:
                    for layer in part.layers:
                        hidden = layer.run(hidden, rotation, step)
                else:
                    hidden = done
            elif _watch(part) is not Watch.NONE:
                hidden = part(hidden[None], position_embeddings=rotation, **{STEP_KEYWORD: step})[0]
            else:
                hidden = part.run(hidden, rotation, step)
        hidden = self._norm.forward(hidden)
        # Asked for in every step: it is exchanged when the weights are laid out.
        return self._model.lm_head.forward(hidden[inputs.logits_index]), hidden


def _watch(layer: FusedLayer) -> Watch:
    if layer._forward_hooks:
        return Watch.ALL
    if not layer._forward_pre_hooks:
        return Watch.NONE
    all_alike = layer._forward_pre_hooks.keys() == layer._forward_pre_hooks_with_kwargs.keys()
    return Watch.INPUT if all_alike else Watch.ALL


def _shown(layer: FusedLayer, hidden: Tensor) -> Tensor:
    """What goes into ``layer`` [N, H], past those who asked for it with ``with_kwargs``."""
    for hook in layer._forward_pre_hooks.values():
        if (changed := hook(layer, (hidden[None],), {})) is not None:
            hidden = changed[0][0][0]
    return hidden


@torch.inference_mode()
def find_walk(model: Any, geometry: KVGeometry, inputs: StepInputs) -> Walk | None:
    """A walk through ``model``, fused; None where it has other parts, or its own forward does more.

    inputs: a step of a few tokens, in the first KV rows, that must give the very same numbers either way.
    """
    if not _has_known_parts(model):
        return None
    memory = KVMemory(geometry, int(inputs.rows.max()) + 1, inputs.rows.device)
    walk = Walk(model)
    output = run_model(model, StepContext(memory, inputs))
    try:
        logits, _ = walk.run(StepContext(memory, inputs))
    except (RuntimeError, TypeError, ValueError):
        return None  # a part that takes other arguments
    return walk if torch.equal(logits, output.logits[0]) else None


def _has_known_parts(model: Any) -> bool:
    decoder = model.get_decoder()
    parts = {name for name, _ in decoder.named_children()}
    outer = {name for name, part in model.named_children() if part is not decoder}
    fused = parts >= _PARTS and all(type(layer) is FusedLayer for layer in decoder.layers)
    return fused and parts == _PARTS and outer == {"lm_head"}
