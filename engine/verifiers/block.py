"""Block verification of a chain (Sun et al., "Block Verification", arXiv 2403.10444).

With ``w_0 = 1`` and ``w_i = min(1, w_{i-1} p(x_i) / q(x_i))`` along the chain, ``S_i = sum (w_i p - q)+`` and
``h_i = S_i / (S_i + 1 - w_i)`` (for the whole chain ``h = w``), keep the longest prefix ``i`` with
``u_i < h_i``; the next token is drawn from ``(w_i p - q)+``, after the whole chain from ``p``.

These are the joint decisions of `resispec_tree` where every node has one child: the weight of node ``i``
is ``w_i``, ``t_1`` is 1, and a node accepts with a correction with probability ``h_i`` if none below it does.
"""

from __future__ import annotations

from ..drawing import Drawing
from .resispec_tree import ResiSpecTreeVerifier


class BlockVerifier(ResiSpecTreeVerifier):
    name = "block"
    drawing = Drawing.CHAIN
    fits = frozenset({Drawing.CHAIN})
