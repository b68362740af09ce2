"""The compiled kernels of ``verify.cpp``, as those of `resispec.models.native` are built and bound."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resispec.models.device import device_for, put
from resispec.models.native import best_built

from .rows import TreeRows

_KINDS = {torch.float32: 0, torch.float64: 1}  # of weights
_POINTER, _SIZE, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class VerifyKernels:
    """Every method takes tensors on the CPU of the dtypes it says; ids beyond the rows weigh nothing."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a library that cannot be loaded: one without torch's OpenMP, say."""
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        rows = [_POINTER, _SIZE, _SIZE, _SIZE]
        self._laws = _bind(library.resispec_laws, [_POINTER] * 3 + [_SIZE] + [_POINTER] * 2 + [_SIZE] * 2)
        self._largest = _bind(library.resispec_largest, [_POINTER] * 3 + [_SIZE, _POINTER] + [_SIZE] * 2)
        self._sums = _bind(library.resispec_sums, [_POINTER, *rows, _POINTER, _POINTER, _SIZE, _FLAG])
        self._draw = _bind(
            library.resispec_draw, [_POINTER] * 2 + rows + [_POINTER, _POINTER, _SIZE, _POINTER, _FLAG]
        )
        self._decide = _bind(
            library.resispec_decide, [_POINTER] * 3 + [_SIZE] * 2 + [_POINTER] * 7 + [_SIZE] * 3 + [_FLAG]
        )

        self._walk = _bind(
            library.resispec_walk,
            [_POINTER] * 2 + [_SIZE] * 3 + [_POINTER] * 3 + [_SIZE] * 2 + [_POINTER, _SIZE, _POINTER],
        )

    def laws(self, logits: Tensor, nodes: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The softmax at some rows, one-hot at temperature 0, and where there is none, but token 0: [B] bool.

        logits: [N, V] float32; nodes: [B] int64; temperature: [B] float32. Returns weights [B, V] float32.
        """
        logits, size, nodes = _rows(logits.float()), logits.shape[1], nodes.contiguous()
        weights = logits.new_empty(len(nodes), size)
        bad = torch.empty_like(nodes, dtype=torch.bool)
        self._laws(
            weights.data_ptr(),
            bad.data_ptr(),
            logits.data_ptr(),
            logits.stride(0),
            nodes.data_ptr(),
            temperature.data_ptr(),
            len(nodes),
            size,
            torch.get_num_threads(),
        )
        return weights, bad

    def largest(self, logits: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The first of the largest logits at some rows, and where that says nothing: [B] int64 and bool.

        logits: [N, V] float32; nodes: [B] int64.
        """
        logits, nodes = _rows(logits.float()), nodes.contiguous()
        tokens, bad = torch.empty_like(nodes), torch.empty_like(nodes, dtype=torch.bool)
        self._largest(
            tokens.data_ptr(),
            bad.data_ptr(),
            logits.data_ptr(),
            logits.stride(0),
            nodes.data_ptr(),
            len(nodes),
            logits.shape[1],
            torch.get_num_threads(),
        )
        return tokens, bad

    def sums(self, weights: Tensor, ids: Tensor, excluded: Tensor) -> Tensor:
        """Of rows without some columns: [B] float64, added in float64.

        weights: [B, V] float32 or float64; ids: [B, M] int64; excluded: [B, M] bool, those left out.
        """
        weights = _rows(weights)
        sums = weights.new_empty(len(weights), dtype=torch.float64)
        ids, excluded = ids.contiguous(), excluded.contiguous()
        self._sums(
            sums.data_ptr(),
            weights.data_ptr(),
            weights.stride(0),
            *weights.shape,
            ids.data_ptr(),
            excluded.data_ptr(),
            ids.shape[1],
            _KINDS[weights.dtype],
            torch.get_num_threads(),
        )
        return sums

    def draw(self, weights: Tensor, ids: Tensor, caps: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """A token of each row, and which rows sum to 0: [B] int64 and bool.

        weights: [B, V] float32 or float64; ids: [B, M] int64, whose weights count for no more than ``caps``
        [B, M] float64; uniforms: [B] float64.
        """
        weights = _rows(weights)
        ids, caps, uniforms = ids.contiguous(), caps.contiguous(), uniforms.contiguous()
        tokens = ids.new_empty(len(weights))
        empty = torch.empty_like(tokens, dtype=torch.bool)
        self._draw(
            tokens.data_ptr(),
            empty.data_ptr(),
            weights.data_ptr(),
            weights.stride(0),
            *weights.shape,
            ids.data_ptr(),
            caps.data_ptr(),
            ids.shape[1],
            uniforms.data_ptr(),
            _KINDS[weights.dtype],
            torch.get_num_threads(),
        )
        return tokens, empty

    def decide(
        self,
        weights: Tensor,
        tokens: Tensor,
        num_head: Tensor,
        num_tail: Tensor,
        tail: tuple[Tensor, Tensor, Tensor],
        uniforms: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What `ResiSpecVerifier` decides at nodes: the slots kept [B] int64, -1: none; and t_1 [B] float64.

        weights: [B, V] float32 or float64; tail: the ids, probabilities and index of a `Proposal`, whose are
        the others too; uniforms: [B, K] float64, or [B, 1] where there is no tail.
        """
        ids, probs, index = (part.contiguous() for part in tail)
        weights, tokens, uniforms = weights.contiguous(), tokens.contiguous(), uniforms.contiguous()
        num_head, num_tail = num_head.contiguous(), num_tail.contiguous()
        child, threshold = torch.empty_like(num_head), uniforms.new_empty(len(num_head))
        self._decide(
            child.data_ptr(),
            threshold.data_ptr(),
            weights.data_ptr(),
            *weights.shape,
            tokens.data_ptr(),
            num_head.data_ptr(),
            num_tail.data_ptr(),
            ids.data_ptr(),
            probs.data_ptr(),
            index.data_ptr(),
            uniforms.data_ptr(),
            tokens.shape[1],
            ids.shape[1],
            uniforms.shape[1],
            _KINDS[weights.dtype],
            torch.get_num_threads(),
        )
        return child, threshold

    def walk(
        self,
        logits: Tensor,
        roots: Tensor,
        temperature: Tensor,
        last: Tensor,
        rows: Sequence[TreeRows],
        uniforms: Tensor,
        depth: int,
    ) -> Tensor:
        """Walks from R roots as `ResiSpecVerifier` decides, down to the last token, by softmax laws.

        logits: [N, V] float32, of all nodes; roots: [R] int64; temperature: [R] float32, 0: greedy, whose
        walks keep a child that holds the only token; last: [R] float64, the uniform of the last token; rows:
        where two hold one node the later counts; uniforms: [U] float64, of all rows; depth: D, of the trees.

        Returns [R, 4 + 3 D] int64: how many nodes were kept; the last token; whether it is the law's since
        what was left of it summed to 0; whether some law was none, and the rest means nothing. Then the kept
        nodes, counted from the root, their tokens and which children they are, -1 behind them.
        """
        logits = _rows(logits.float())
        out = roots.new_empty(len(roots), 4 + 3 * depth)
        held: list[Tensor] = []  # until the call is over
        fields: list[int] = []
        for some in rows:
            tensors = [tensor.contiguous() for tensor in some.tensors()]
            held += tensors
            fields += some.children.shape
            fields += (
                some.proposal.tail_ids.shape[1],
                some.firsts.data_ptr() if some.firsts is not None else 0,
            )
            fields += [tensor.data_ptr() for tensor in tensors]
        blocks = put(fields, logits.device)
        self._walk(
            out.data_ptr(),
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            logits.shape[0],
            roots.data_ptr(),
            temperature.data_ptr(),
            last.data_ptr(),
            len(roots),
            depth,
            blocks.data_ptr(),
            len(rows),
            uniforms.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def _bind(function: Any, arguments: list[Any]) -> Any:
    function.argtypes = [*arguments, _FLAG]  # in the end: threads
    function.restype = None
    return function


def _rows(rows: Tensor) -> Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()


@lru_cache
def _built() -> VerifyKernels | None:
    return best_built(Path(__file__).parent, VerifyKernels)


def kernels_for(device: torch.device) -> VerifyKernels | None:
    """None where there are none, and torch's own operations do the work."""
    return _built() if device_for(device).runs_native else None
