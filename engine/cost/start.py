"""The table a server starts with: from the cache if the pair was measured here before, else measured."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from resispec.models.base import StepModel
from resispec.models.device import device_for
from resispec.models.kv import KVMemory

from ..config import EngineConfig
from ..proposers.base import Proposer
from .measure import Limits, measure_costs, measure_pace
from .table import CostFileError, CostTable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pair:
    """Models that are ready to step, on memories in which nobody owns a row."""

    target: StepModel
    proposer: Proposer | None
    memories: Sequence[KVMemory]


def start_costs(folder: Path, key: str, pair: Pair, limits: Limits, device: torch.device) -> CostTable:
    """The pair's table: kept in ``folder`` under ``key``, or measured now. Leaves all KV rows zero."""
    try:
        return cached_costs(
            cost_path(folder, key),
            key,
            measure=lambda: measure_costs(pair.target, pair.proposer, limits, device),
            adjust=lambda table: measure_pace(pair.target, table, device),
        )
    finally:
        for memory in pair.memories:
            memory.clear_run(0, min(limits.rows_used, memory.num_rows))


def cost_path(folder: Path, key: str) -> Path:
    """Where the table for ``key`` is kept."""
    return folder / f"{key[:24]}.json"


def cost_key(config: EngineConfig, device: torch.device, modules: Sequence[Any]) -> str:
    """What the costs depend on, as one string: settings, layers, shapes, processor, kernels, threads."""
    there = device_for(device)
    parts = [config, there.description, there.attentions, torch.get_num_threads(), torch.__version__]
    parts += [(module, getattr(module, "config", None)) for module in modules]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def cached_costs(
    path: Path, key: str, measure: Callable[[], CostTable], adjust: Callable[[CostTable], None]
) -> CostTable:
    """The table kept in ``path``, adjusted to today; or a new one, which is kept there from now on.

    A file that cannot be used is replaced, with one line in the log; one that cannot be written is only
    logged.
    """
    try:
        table = CostTable.load(path, key)
    except FileNotFoundError:
        pass
    except (OSError, CostFileError) as error:
        _log.warning("the cost table in %s cannot be used (%s); measuring again", path, error)
    else:
        adjust(table)
        return table
    table = measure()
    try:
        table.save(path, key, table.learned)
    except OSError as error:
        _log.warning("the cost table cannot be kept in %s: %s", path, error.strerror or error)
    return table
