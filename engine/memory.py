"""How many rows the KV memory gets: from the setting, or from what the machine has free."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from resispec.models.device import device_for

from .config import ConfigError, EngineConfig

_ALIGN = 16


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    num_rows: int
    max_model_len: int
    note: str | None = None


def plan_memory(
    config: EngineConfig, bytes_per_row: int, context: int, tree_nodes: int, device: torch.device
) -> MemoryPlan:
    """Rows for as many full requests as may run at once, or for as many as fit.

    context: tokens the model can encode. tree_nodes: candidates a request holds beyond its tokens.
    Raises ConfigError if not even one request of ``max_model_len`` tokens fits.
    """
    if config.max_model_len is not None and config.max_model_len > context:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but the model's context has {context} tokens; "
            f"use {context} or less",
            "max_model_len",
        )
    wanted_length = config.max_model_len or context
    budget = config.kv_memory
    if budget is None:
        there = device_for(device)
        budget = int(there.free_memory() * there.memory_share)
    affordable = budget // bytes_per_row // _ALIGN * _ALIGN
    needed = _rows(wanted_length, tree_nodes)
    if affordable >= needed:
        return MemoryPlan(min(affordable, config.max_num_seqs * needed), wanted_length)
    fitting = affordable - tree_nodes - _ALIGN
    if config.max_model_len is not None or fitting < 64:
        setting = "kv_memory" if config.kv_memory is not None else "max_model_len"
        shorter = f", or max_model_len to {fitting} or less" if fitting > 1 else ""
        raise ConfigError(
            f"the KV memory of {_size(budget)} does not hold one request of {wanted_length} tokens, "
            f"which takes {_size(needed * bytes_per_row)} for both models; set kv_memory to at least "
            f"that{shorter}",
            setting,
        )
    note = (
        f"The context is cut from {context} to {fitting} tokens, because the KV memory of "
        f"{_size(budget)} holds no longer request."
    )
    return MemoryPlan(affordable, fitting, note)


def _rows(length: int, tree_nodes: int) -> int:
    return -(-(length + tree_nodes) // _ALIGN) * _ALIGN


def _size(num_bytes: int) -> str:
    """In mebibytes, or in kibibytes where that would be a small number, rounded up."""
    unit, name = (2**20, "MiB") if num_bytes >= 10 * 2**20 else (2**10, "KiB")
    return f"{-(-num_bytes // unit):,} {name}"
