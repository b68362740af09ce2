"""Which parts of a model are replaced: those that look like a known kind and, run, give the same.

A known kind is a shape of module, not a family of models. A model is run once on a few tokens; what went
into each part and what came out is kept; a replacement that does not turn the same inputs into the same
outputs is dropped, and the part stays as transformers wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from resispec.models.attention import StepContext, run_model
from resispec.models.base import StepInputs
from resispec.models.kv import KVGeometry, KVMemory
from resispec.models.mapped import MappedWeights

from .attention import fused_attentions
from .layer import fused_layers
from .mlp import fused_mlps
from .norm import fused_norms

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class FusionReport:
    """fused: parts replaced, by kind. differing: parts that gave other results fused, and so were not."""

    fused: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for every kind that stayed as it was."""
        return tuple(
            f"{count} {kind} parts of the model run unfused and slower: fused, they gave other results."
            for kind, count in sorted(self.differing.items())
        )


@dataclass(slots=True)
class _Seen:
    """One call of a part."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


class _RecordingStep(StepContext):
    """Notes what every layer hands to the attention interface."""

    def __init__(self, memory: KVMemory, inputs: StepInputs) -> None:
        super().__init__(memory, inputs)
        self.layers: dict[int, tuple[float, int | None]] = {}

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        self.layers[layer] = (scaling, window)
        return super().attend(query, layer, scaling, window)


@torch.inference_mode()
def fuse(model: nn.Module, geometry: KVGeometry, inputs: StepInputs) -> FusionReport:
    """Replace what can be replaced in ``model``, in place. Its attention must be the packed one.

    inputs: a step of a few tokens, in the first KV rows, to compare with.
    """
    step = _RecordingStep(KVMemory(geometry, int(inputs.rows.max()) + 1, inputs.rows.device), inputs)
    with _watched(model) as seen:
        run_model(model, step)
    report = FusionReport()
    plain = MappedWeights.of(model)
    plain.release()
    _fuse_within(model, seen, step, report, plain)
    return report


def _fuse_within(
    parent: nn.Module,
    seen: dict[int, _Seen],
    step: _RecordingStep,
    report: FusionReport,
    plain: MappedWeights,
) -> None:
    geometry = step.memory.geometry
    for name, part in list(parent.named_children()):
        call = seen.pop(id(part), None)
        kind, candidates = _candidates(part, step) if call else ("", [])
        fitting = (new for new in candidates if call and _same(new, call, geometry.dtype))
        if (new := next(fitting, None)) is not None:
            setattr(parent, name, new.train(part.training))
            report.fused[kind] += 1
            plain.release()
            continue
        if candidates:
            report.differing[kind] += 1
        _fuse_within(part, seen, step, report, plain)
        if call and (layers := fused_layers(part)):
            if _same(layers[0], call, geometry.dtype):
                setattr(parent, name, layers[0].train(part.training))
                report.fused["layer"] += 1
            else:
                report.differing["layer"] += 1


def _candidates(part: Any, step: _RecordingStep) -> tuple[str, list[Any]]:
    if norms := fused_norms(part):
        return "norm", list(norms)
    if mlps := fused_mlps(part):
        return "feed-forward", list(mlps)
    geometry = step.memory.geometry
    handed = step.layers.get(getattr(part, "layer_idx", -1))
    if handed is None or geometry.key_dim != geometry.value_dim or not hasattr(part, "head_dim"):
        return "", []
    attentions = fused_attentions(
        part,
        scaling=handed[0],
        window=handed[1],
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.key_dim,
    )
    return "attention", list(attentions)


def _same(new: nn.Module, seen: _Seen, dtype: torch.dtype) -> bool:
    try:
        output = new(*seen.args, **seen.kwargs)
    except (RuntimeError, TypeError, ValueError, KeyError):
        return False  # other shapes or arguments than this kind has
    output = (output[0] if isinstance(output, tuple) else output).float()
    expected = seen.output.float()
    if output.shape != expected.shape:
        return False
    return bool((output - expected).norm() <= _TOLERANCE[dtype] * expected.norm())


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[int, _Seen]]:
    """Fills the dictionary, by ``id``, with the last call of every module that gives a tensor, or one first.

    By id, because a module held here would keep its weights alive after its replacement took over.
    """
    seen: dict[int, _Seen] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor):
            seen[id(module)] = _Seen(args, kwargs, first)

    handles = [part.register_forward_hook(keep, with_kwargs=True) for part in model.modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
