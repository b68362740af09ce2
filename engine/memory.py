"""How many rows the KV memory gets: from the setting, or from what the machine has free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from .config import ConfigError, EngineConfig

_CPU_SHARE = 0.4  # of the free memory; the rest is for activations and for the machine's other users
_CUDA_SHARE = 0.85
_ALIGN = 16
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    num_rows: int
    max_model_len: int
    note: str | None = None


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated on ``device``; on a CPU within the container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


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
        budget = int(free_memory(device) * (_CUDA_SHARE if device.type == "cuda" else _CPU_SHARE))
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
