"""The one way into a model: a packed step over rows of the KV memory.

A step packs the new tokens of many requests into one sequence of ``N`` tokens. Each token writes its
key and value to one *row* of the KV memory; each request owns one contiguous run of rows::

    tokens      a a a | b | c c c c c          N = 9, three segments
    KV rows     [....aaa......][..b...][.....ccccc....]   one run of rows per request

A segment says which of its request's rows its tokens may see: everything up to themselves (a prompt
chunk, a single token) or what a mask allows (a candidate tree).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .visibility import Visibility


class ModelError(Exception):
    """A model that cannot be used: says which file or setting, why, and what would work."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens ``[start, start + length)`` of a step: one request's."""

    start: int
    length: int
    kv_start: int  # first KV row of the request
    kv_length: int  # rows it may see, counted from kv_start, its own new tokens included
    # [length, m] bool, True: visible, of the last m of these rows; the tokens see all before them.
    mask: Tensor | None = None  # None: causal, aligned at the end


@dataclass(frozen=True, slots=True)
class StepInputs:
    token_ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    rows: Tensor  # [N] int64: the KV row each token is written to
    segments: tuple[Segment, ...]  # cover the N tokens without gaps
    logits_index: Tensor  # [L] int64: tokens whose logits are wanted
    hidden: Tensor | None = None  # [N, H]: for heads, the target's hidden state one position earlier
    visibility: Visibility | None = None  # what the segments say, as tensors; they are empty then


@dataclass(frozen=True, slots=True)
class StepOutputs:
    logits: Tensor  # [L, V] float32
    hidden: Tensor  # [N, H]: last hidden states, as the output matrix reads them


class StepModel(Protocol):
    """A model that steps over its own KV memory: the target, a draft model, a draft head."""

    @property
    def needs_hidden(self) -> bool:
        """True for a head on the target's hidden states."""
        ...

    @property
    def max_positions(self) -> int:
        """Positions the model can encode; longer sequences must not reach it."""
        ...

    @property
    def vocab_ids(self) -> Tensor | None:
        """[V] int64: the target's token id of every logits column. None: the identity."""
        ...

    def forward(self, inputs: StepInputs) -> StepOutputs: ...

    def move_rows(self, source: Tensor, destination: Tensor) -> None:
        """Copy KV rows; [n] int64 each. All sources are read before any destination is written."""
        ...
