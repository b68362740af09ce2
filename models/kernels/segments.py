"""Attention in calls of torch's for one or more requests each, which the host plans."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from resispec.models.base import StepInputs
from resispec.models.kv import KVMemory
from resispec.models.prompt_attention import PromptAttention
from resispec.models.runs import Run, plan_runs


class SegmentAttention:
    """The attention of a step, or of some of its segments: it gives their tokens in order."""

    def __init__(self, memory: KVMemory, inputs: StepInputs) -> None:
        self._memory = memory
        self._inputs = inputs
        self._runs: dict[tuple[int | None, int], tuple[Run, ...]] = {}
        self._prompts = PromptAttention()

    def attend(self, query: Tensor, layer: int, scaling: float, window: int | None) -> Tensor:
        """query: [N, query heads, key dim] of the whole step -> [N, query heads, value dim].

        The query heads that share a KV head are folded into the query axis, which spares repeating keys
        and values (stock SDPA repeats them when there is a mask).
        """
        heads, key_dim = query.shape[1:]
        kv_heads, value_dim = self._memory.geometry.num_kv_heads, self._memory.geometry.value_dim
        groups = heads // kv_heads
        runs = self._runs.get((window, groups))
        if runs is None:
            runs = plan_runs(self._inputs, window, groups, self._memory.geometry.dtype)
            self._runs[window, groups] = runs
        outputs = []
        for run in runs:
            count, length = run.count, run.length
            own = query[run.start : run.start + count * length] if run.queries is None else query[run.queries]
            keys, values = self._memory.read(layer, run)
            if run.in_blocks:
                outputs.append(self._prompts.attend(own, keys[0], values[0], scaling))
                continue
            if length == 1:  # what is folded lies side by side; most steps are made of these
                folded = own.view(count, kv_heads, groups, key_dim)
            else:
                folded = own.reshape(count, length, kv_heads, groups, key_dim).permute(0, 2, 3, 1, 4)
                folded = folded.reshape(count, kv_heads, groups * length, key_dim)
            attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=run.bias, scale=scaling)
            if length == 1:
                unfolded = attended.view(count, heads, value_dim)
            else:
                unfolded = attended.view(count, heads, length, value_dim).transpose(1, 2)
                unfolded = unfolded.reshape(count * length, heads, value_dim)
            outputs.append(unfolded if run.places is None else unfolded[run.places])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
