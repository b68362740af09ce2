"""Attention of a packed step: every request's tokens against that request's own rows, nothing else.

Registered with transformers under one name, so that any decoder that goes through its attention
interface runs on our KV memory without a copied line of model code. The step travels to it in the
model call's keyword arguments: nothing is global.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import ModelError, StepInputs
from .kernels import kernel_for
from .kernels.rows import RowAttention
from .kv import ROWS, KVMemory
from .native import KINDS, native_kernels
from .native.products import StepArguments
from .runs import Alone, plan_alone

ATTENTION_NAME = "resispec_packed"  # no "flash", "sdpa" or "flex_attention": transformers would treat it so
STEP_KEYWORD = "resispec_step"


class CacheShape:
    """What decoders ask of transformers' `Cache` beside `update`: it looks empty, positions are given."""

    is_compileable = False

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return query_length, 0


class StepContext(CacheShape):
    """One step on its way through a model: what its cache and its attention need to know.

    What does not change from layer to layer is made once: which segments are attended together, their
    masks, the sines of the positions.
    """

    def __init__(self, memory: KVMemory, inputs: StepInputs) -> None:
        self.memory = memory
        self.inputs = inputs
        self._alone: dict[int | None, Alone | None] = {}
        self._kernel = kernel_for(memory, inputs)
        self._rows = native_kernels() if memory.attention == ROWS else None
        self._rotations: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._few: dict[tuple[int, int | None], StepArguments | None] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the step's keys and values ([1, kv heads, N, dim]) to their rows."""
        self.memory.write(layer, self.inputs.rows, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return keys, values

    def know_rotation(self, cos: Tensor, signed: Tensor) -> None:
        """What `rotation` is to find for ``cos`` [1, N, D]. signed: [N, D], the sines, first half negated."""
        self._rotations[id(cos)] = (cos, cos[0][:, None], signed[:, None])

    def rotation(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Of rotary tables [1, N, D]: ``cos`` and ``sin`` with its first half negated, [N, 1, D]."""
        found = self._rotations.get(id(cos))
        if found is None:
            first, second = sin[0].chunk(2, dim=-1)
            signed = torch.cat([-first, second], dim=-1)[:, None]
            found = (cos, cos[0][:, None], signed)  # `cos` itself, so that its id stays taken
            self._rotations[id(cos)] = found
        return found[1], found[2]

    def rotate(self, layer: int, heads: Tensor, cos: Tensor, sin: Tensor) -> bool:
        """Turn queries in place, and write keys, turned, and values to the step's rows, in one kernel.

        heads: [N, query heads + 2 KV heads, D]; cos, sin: [N, 1, D], of `rotation`. False: there is no
        kernel for this, and nothing has been done.
        """
        keys, values = self.memory.layer(layer)
        fits = heads.dtype in KINDS and heads.dtype is cos.dtype is keys.dtype and heads.is_contiguous()
        if self._rows is None or not fits or not cos.shape[-1] == heads.shape[-1] == values.shape[-1]:
            return False
        self._rows.rotate(heads, cos, sin, self.inputs.rows, keys, values)
        return True

    def alone(self, window: int | None) -> Alone | None:
        """What the only token of a step sees; None for a step of more tokens, or of an unusual one."""
        if window not in self._alone:
            self._alone[window] = plan_alone(self.inputs, window)
        return self._alone[window]

    def few(self, cos: Tensor, sin: Tensor, window: int | None) -> StepArguments | None:
        """The step for kernels of whole layers, by the tables of `rotation`'s first form.

        None: its KV memory is read in other ways, or some of its tokens are.
        """
        key = id(cos), window
        if key not in self._few:
            table = self._kernel.table(window) if isinstance(self._kernel, RowAttention) else None
            if not self.memory.geometry.dtype is cos.dtype is torch.bfloat16:
                table = None
            self._few[key] = None if table is None else self._arguments(*self.rotation(cos, sin), table)
        return self._few[key]

    def _arguments(self, cos: Tensor, sin: Tensor, table: Tensor) -> StepArguments:
        inputs = self.inputs
        return StepArguments(
            cos.data_ptr(),
            sin.data_ptr(),
            inputs.rows.data_ptr(),
            inputs.positions.data_ptr(),
            table.data_ptr(),
            inputs.positions.shape[0],
            table.shape[0],
        )

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, key dim] -> [N, query heads, value dim]."""
        return self._kernel.attend(query, layer, scaling, window)


def run_model(model: Any, step: StepContext) -> Any:
    """One step of a transformers model whose attention is the packed one; gives its own output object."""
    return model(
        input_ids=step.inputs.token_ids[None],
        position_ids=step.inputs.positions[None],
        cache=step,
        use_cache=True,
        logits_to_keep=step.inputs.logits_index,
        **{STEP_KEYWORD: step},
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention interface of transformers. query: [1, query heads, N, dim] -> [1, N, query heads, dim].

    Raises ModelError for a kind of attention this one would get silently wrong.
    """
    step = kwargs.get(STEP_KEYWORD)
    layer = getattr(module, "layer_idx", None)
    if not isinstance(step, StepContext) or layer is None:
        raise ModelError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention, so it cannot run "
            "on the server's KV memory; a model whose attention goes through transformers' interface would"
        )
    for name in ("softcap", "s_aux", "head_mask", "position_bias"):
        if kwargs.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses {name} in its attention, which is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return step.attend(query[0].transpose(0, 1), int(layer), scale, sliding_window)[None], None


def register_attention() -> None:
    """Make the attention known to transformers under `ATTENTION_NAME`. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, packed_attention)
