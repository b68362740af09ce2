"""Recursive rejection over independent draws (Miao et al., "SpecInfer", arXiv 2305.09781).

Accept ``x`` with probability ``min(1, R(x) / q(x))``, else ``R <- norm((R - q)+)``, starting at ``R = p``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..drawing import Drawing
from .in_turn import InTurnRule, Rest


class SpecInferVerifier(InTurnRule):
    name = "specinfer"
    drawing = Drawing.INDEPENDENT
    fits = frozenset({Drawing.HEAD, Drawing.HEAD_AND_TAIL, Drawing.INDEPENDENT, Drawing.CHAIN})

    def refuse(self, rest: Rest, drawn: Tensor) -> Rest:  # noqa: ARG002  the same for all refused
        return replace(rest, tail=(rest.tail - rest.q * rest.total[:, None]).clamp(min=0))
