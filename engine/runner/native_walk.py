"""Walks in one call of our kernels, where every law is a softmax and nothing but its outcome is wanted."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resispec.models.device import put

from ..native import TreeRows, VerifyKernels
from ..proposers.base import GrownGroup
from ..sampling.rows import SamplingRows
from ..sampling.weights import temperatures
from ..verifiers.base import TreeVerifier
from ..verifiers.resispec import ResiSpecVerifier
from ..verifiers.table import VERIFIERS
from .batch import TargetBatch
from .candidates import Test, drafted_tests, known_rows


def can_walk(verifiers: SequenceOf[str], sampling: SamplingRows, groups: SequenceOf[GrownGroup]) -> bool:
    """Whether the kernels' walks are those of ``verifiers``: of every request, as ``sampling`` is.

    A greedy walk is the same by every exact rule that looks at one node at a time: none can keep another
    token than the only one.
    """
    if sampling.adjusts or sampling.truncation is not None:
        return False
    if not groups:
        return True  # nothing but last tokens is left to draw
    rules = {name: VERIFIERS[name] for name in verifiers}
    if sampling.all_greedy:
        return all(rule.exact and not isinstance(rule, TreeVerifier) for rule in rules.values())
    drawings = {drawing for group in groups for level in group.levels for drawing in level.proposal.drawings}
    return all(type(rule) is ResiSpecVerifier and drawings <= rule.fits for rule in rules.values())


def walk_all(
    kernels: VerifyKernels,
    logits: Tensor,
    batch: TargetBatch,
    sampling: SamplingRows,
    tests: SequenceOf[NDArray[np.float64]],
    last: Tensor,
    max_depth: int,
) -> Tensor:
    """What `VerifyKernels.walk` returns. sampling, tests: of every owner, its uniforms."""
    draws = not sampling.all_greedy
    offsets = [0]  # of every owner's uniforms among all
    if draws:
        for block in tests:
            offsets.append(offsets[-1] + len(block))
    roots = put(batch.roots, logits.device)
    return kernels.walk(
        logits,
        roots,
        temperatures(sampling),
        last,
        _rows(batch, roots, offsets if draws else None),
        put(np.concatenate(tests) if draws else np.empty(0), logits.device),
        max_depth,
    )


def _rows(batch: TargetBatch, roots: Tensor, offsets: SequenceOf[int] | None) -> list[TreeRows]:
    """Known nodes first: of a node that the draft expands as well, the drafted row counts."""
    device = roots.device
    rows: list[TreeRows] = []

    def firsts(tests: SequenceOf[Test]) -> Tensor | None:
        return None if offsets is None else put([offsets[owner] + first for owner, first, _ in tests], device)

    for group, owner in zip(batch.groups, batch.group_owners, strict=True):
        known = known_rows(group, batch.roots, owner)
        if known.nodes:
            nodes, children = put(known.nodes, device)[None], put(known.children, device)[None]
            start = torch.zeros(1, dtype=torch.long, device=device)
            rows.append(TreeRows(start, nodes, children, known.proposal(device), firsts(known.tests)))
    for group, owner in zip(batch.groups, batch.group_owners, strict=True):
        bases = roots[owner : owner + len(group.members)]
        levels = group.levels
        tests = drafted_tests(group, owner) if offsets is not None else [()] * len(levels)
        rows += [
            TreeRows(bases, level.parents, level.children, level.proposal, firsts(used))
            for level, used in zip(levels, tests, strict=True)
        ]
    return rows
