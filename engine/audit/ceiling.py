"""The most that any exact rule can accept of given candidates: an optimal transport from them to ``p``.

A rule keeps one of a set of candidates, or none. By the theorems of Hall and Strassen it keeps one with
probability at most ``min over S of 1 + p(S) - P(all candidates are in S)``. For a head ``C`` and ``n``
independent draws from ``q`` that is ``1 + p(C) + p(S) - q(S)^n`` over sets ``S`` of drawn tokens, and the
best ``S`` is a prefix in order of ``q / p`` (Hu et al., "Towards optimal multi-draft speculative decoding",
arXiv 2502.18779).
"""

from __future__ import annotations

import numpy as np

from .proposals import Source, subset_masks

_MOST_TOKENS = 14  # of a tail without replacement, all of whose subsets are looked at
_MOST_TUPLES = 1 << 18


def ceiling(node: Source) -> float | None:
    """The bound on the acceptance at a node; None where it takes too many subsets to find."""
    p, q = node.p.numpy(), np.asarray(node.q)
    p_head = float(p[list(node.head)].sum())
    if node.num_tail == 0:
        return p_head
    if not node.distinct or node.num_tail == 1:
        return min(1.0, 1 + p_head + _best_prefix(p[list(node.support)], q, node.num_tail))
    if len(node.support) > _MOST_TOKENS or node.num_tuples > _MOST_TUPLES:
        return None
    return min(1.0, 1 + _best_subset(p[list(node.support)], node))


def _best_prefix(p: np.ndarray, q: np.ndarray, n: int) -> float:
    """The least ``p(S) - q(S)^n``."""
    order = np.argsort(p / q, kind="stable")
    return float((p[order].cumsum() - q[order].cumsum().clip(max=1) ** n).min())


def _best_subset(p: np.ndarray, node: Source) -> float:
    """The least ``p(S) - P(draws are in S)`` over all subsets: sums over subsets, bit by bit."""
    size = len(p)
    inside = np.zeros(1 << size)
    masks, weights = subset_masks(node)
    np.add.at(inside, masks, weights)
    mass = np.zeros(1 << size)
    for bit in range(size):
        without = inside.reshape(-1, 2, 1 << bit)
        without[:, 1] += without[:, 0]
        mass.reshape(-1, 2, 1 << bit)[:, 1] += p[bit]
    return float((mass - inside).min())
