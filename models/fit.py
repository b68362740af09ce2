"""What happens to a loaded model before it may serve: checked, made quicker, checked again."""

from __future__ import annotations

from typing import Any

from .causal import chunk_inputs, probe_geometry
from .device import device_for
from .fuse import fuse
from .kv import KVGeometry
from .pack import pack_linears
from .quantize import quantize_linears
from .selfcheck import SelfCheck


def fit(model: Any, max_positions: int) -> tuple[KVGeometry, tuple[str, ...]]:
    """Fit ``model`` to the KV memory, in place; what it keeps there, and notes for whoever serves it.

    Raises ModelError for a model that gives other results on the KV memory than transformers gives.
    """
    geometry = probe_geometry(model)
    check = SelfCheck(model, geometry, max_positions)
    check.run()
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    ids = [(6151 * i + 17) % vocabulary for i in range(min(12, max_positions))]
    report = fuse(model, geometry, chunk_inputs(ids, 0, next(model.parameters()).device))
    check.run()
    return geometry, report.notes


def lay_out(model: Any, quantization: str) -> tuple[str, ...]:
    """Lay the weights of ``model`` out for the kernels of its device, in place, rounded if so wished.

    quantization: none, int8 or int4. The plain weights are gone afterwards. Notes for whoever serves it.
    """
    device, dtype = model.device, model.dtype  # asked first: packed weights are no parameters
    notes = quantize_linears(model, quantization) if quantization != "none" else ()
    if device_for(device).packs(dtype):
        pack_linears(model)
    return notes
