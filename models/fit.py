"""What happens to a loaded model before it may serve: checked, made quicker, checked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import ModelError
from .causal import chunk_inputs, probe_geometry
from .fuse import fuse
from .kernels import suits
from .kv import SEGMENTS, KVGeometry
from .layout import lay_out_linears
from .mapped import MappedWeights
from .selfcheck import SelfCheck
from .walk import Walk, find_walk


@dataclass(frozen=True, slots=True)
class Fitted:
    geometry: KVGeometry
    attention: str  # how its KV memory is to be read
    notes: tuple[str, ...]  # for whoever serves it
    walk: Walk | None = None  # a quicker way through the model; None: it has to run as it is


def fit(model: Any, max_positions: int, attentions: Sequence[str] = (SEGMENTS,)) -> Fitted:
    """Fit ``model`` to the KV memory, in place.

    attentions: ways to read the KV memory, of which the first one that works is used.
    Raises ModelError for a model that gives other results on the KV memory than transformers gives, and
    where none of them has a kernel for it.
    """
    geometry = probe_geometry(model)
    check = SelfCheck(model, geometry, max_positions)
    suitable = [name for name in attentions if suits(name, geometry)]
    if not suitable:
        raise ModelError(
            f"attention {attentions[-1]!r} has no kernel for heads of {geometry.key_dim} numbers in "
            f"{geometry.dtype}; use 'auto'"
        )
    attention, notes = _choose_attention(check, suitable)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    ids = [(6151 * i + 17) % vocabulary for i in range(min(12, max_positions))]
    inputs = chunk_inputs(ids, 0, next(model.parameters()).device)
    report = fuse(model, geometry, inputs)
    check.run(attention)
    walk = find_walk(model, geometry, inputs)
    MappedWeights.of(model).release()  # the check has read what is going to be laid out anew
    return Fitted(geometry, attention, notes + report.notes, walk)


def _choose_attention(check: SelfCheck, attentions: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    *better, last = attentions
    notes: tuple[str, ...] = ()
    for attention in better:
        try:
            check.run(attention)
        except Exception as error:  # noqa: BLE001  whatever a compiler raises; there is another way
            reason = " ".join(str(error).split())[:200]
            notes += (f"Attention '{attention}' does not work here ({type(error).__name__}: {reason}).",)
        else:
            return attention, notes
    check.run(last)
    return last, notes


def lay_out(model: Any, quantization: str, *, native: bool = True) -> tuple[str, ...]:
    """Lay the weights of ``model`` out as `lay_out_linears` does. Its output matrix keeps its format.

    That matrix is read once a step, an eighth of a large model at most, and its rounding would go straight
    into every law.
    """
    output = model.get_output_embeddings()
    return lay_out_linears(model, quantization, model.device, model.dtype, exact=output, native=native)
