"""Recursive rejection over draws without replacement (Jeon et al., "RSD", arXiv 2402.14160; Sequoia).

As over independent draws, but a refused token also leaves ``q``, which is renormalised. Where ``q`` has
no token left, nothing more was drawn, and the last token comes from ``R``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..drawing import Drawing
from .in_turn import InTurnRule, Rest


class WithoutReplacementVerifier(InTurnRule):
    name = "without-replacement"
    drawing = Drawing.WITHOUT_REPLACEMENT
    fits = frozenset({Drawing.HEAD, Drawing.WITHOUT_REPLACEMENT, Drawing.CHAIN})

    def refuse(self, rest: Rest, drawn: Tensor) -> Rest:
        tail = (rest.tail - rest.q * rest.total[:, None]).clamp(min=0)
        q = rest.q.scatter(1, drawn, 0.0)
        left = q.sum(dim=1, keepdim=True)
        return replace(rest, tail=tail, q=torch.where(left > 0, q / left, 0.0))
