"""The KV memory: one pool of rows per model, a row being one token's keys and values in all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .device import device_for
from .native import native_kernels
from .runs import Run
from .states import RowStates

ROWS = "rows"  # attention by our own kernel for CPUs
SEGMENTS = "segments"  # attention in calls for one or more requests each, which the host plans
FLEX = "flex"  # attention of all requests in one kernel


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What one row holds. Found by running the model once, never guessed from a configuration."""

    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    hidden_size: int
    dtype: torch.dtype

    def bytes_per_row(self, *, keep_hidden: bool = False) -> int:
        values = self.num_layers * self.num_kv_heads * (self.key_dim + self.value_dim)
        return (values + (self.hidden_size if keep_hidden else 0)) * self.dtype.itemsize


class KVMemory:
    """``num_rows`` rows of keys, values and, where a draft head reads them, states.

    ::

        keys    [layers, rows, kv heads, key dim]
        values  [layers, rows, kv heads, value dim]
        states  of [rows, hidden size], or None

    A request owns a contiguous run of rows, so its keys in a layer are a view, not a gather. Zeroed at
    the start: what lies in a masked row is multiplied by 0, and a NaN there would not vanish.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_rows: int,
        device: torch.device,
        *,
        keep_hidden: bool = False,
        attention: str = SEGMENTS,
    ) -> None:
        """attention: how the rows are read: `ROWS`, `SEGMENTS` or `FLEX`."""
        self.attention = attention
        shape = (geometry.num_layers, num_rows, geometry.num_kv_heads)
        self.geometry = geometry
        self.num_rows = num_rows
        self.keys = torch.zeros(*shape, geometry.key_dim, dtype=geometry.dtype, device=device)
        self.values = torch.zeros(*shape, geometry.value_dim, dtype=geometry.dtype, device=device)
        self.states = (
            RowStates(num_rows, geometry.hidden_size, geometry.dtype, device) if keep_hidden else None
        )

        self._kernels = native_kernels() if device_for(device).runs_native else None
        # Views, made once: indexing costs as much as a small kernel.
        self._layers = tuple(zip(self.keys, self.values, strict=True))
        self._flat = tuple((keys.flatten(1), values.flatten(1)) for keys, values in self._layers)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values: views of [rows, kv heads, dim]."""
        return self._layers[layer]

    def layers(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values of layers that follow each other: views of [count, rows, kv heads, dim]."""
        return self.keys.narrow(0, first, count), self.values.narrow(0, first, count)

    def read(self, layer: int, run: Run) -> tuple[Tensor, Tensor]:
        """A run's keys and values in a layer: [count, kv heads, kv_length, dim] each."""
        if run.rows is None:
            keys, values = self._layers[layer]
            keys = keys.narrow(0, run.kv_start, run.kv_length)[None]
            values = values.narrow(0, run.kv_start, run.kv_length)[None]
        else:
            keys, values = self._flat[layer]
            shape = (run.count, run.kv_length, self.geometry.num_kv_heads, -1)
            keys = keys.index_select(0, run.rows).view(shape)
            values = values.index_select(0, run.rows).view(shape)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """rows: [N] int64; keys: [N, kv heads, key dim]; values: [N, kv heads, value dim]."""
        own_keys, own_values = self._layers[layer]
        if self.attention == FLEX:
            # A key that is not seen is left out, a value is multiplied by 0: so what is no number goes
            # into the keys, where it reaches its own request and no other.
            bad = ~values.isfinite().flatten(1).all(dim=1)
            keys = keys.masked_fill(bad[:, None, None], torch.nan)
            values = values.nan_to_num()
        own_keys.index_copy_(0, rows, keys)
        own_values.index_copy_(0, rows, values)

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        """Copy rows [n] int64 to rows [n] int64; every source is read before a destination is written."""
        for pool in (self.keys, self.values):
            if self._kernels is not None:
                self._kernels.move_rows(pool, source, destination)
            else:
                pool.index_copy_(1, destination, pool.index_select(1, source))
        if self.states is not None:
            self.states.move(source, destination)

    def clear_run(self, start: int, length: int) -> None:
        """Zero the run of ``length`` rows at ``start``."""
        for pool in (self.keys, self.values):
            pool.narrow(1, start, length).zero_()
        if self.states is not None:
            self.states.clear(start, length)

    def copy_run(self, source: int, destination: int, length: int) -> None:
        """Copy the run of ``length`` rows at ``source`` to ``destination``; the runs may overlap."""
        overlap = abs(source - destination) < length
        for pool in (self.keys, self.values):
            run = pool.narrow(1, source, length)
            pool.narrow(1, destination, length).copy_(run.clone() if overlap else run)
        if self.states is not None:
            self.states.copy(source, destination, length)
