"""Algorithm 1 of the ResiSpec paper (arXiv 2608.24411) as printed: *not exact*, kept to show by how much.

Accept ``x`` with probability ``min(1, R(x) / q(x))``. Else, with ``Z = q(x) - R(x)``, reserve
``r = min(Z q, R)`` off ``x``, spread what ``r`` lacks of ``Z`` over the room ``R - r`` off ``x`` in
proportion to it, and go on with ``R <- r / Z``. The new ``R`` depends on which token was refused, and puts
mass where ``p <= q``: that is where the law is lost. docs/exactness.md has an example with three tokens.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..drawing import Drawing
from .in_turn import InTurnRule, Rest


class ResiSpecPaperVerifier(InTurnRule):
    name = "resispec-paper"
    exact = False
    drawing = Drawing.INDEPENDENT
    fits = frozenset({Drawing.HEAD, Drawing.INDEPENDENT, Drawing.CHAIN})

    def refuse(self, rest: Rest, drawn: Tensor) -> Rest:
        budget = rest.q.gather(1, drawn) - rest.tail.gather(1, drawn)  # Z, [B, 1]
        reserved = torch.minimum(budget * rest.q, rest.tail).scatter(1, drawn, 0.0)
        room = (rest.tail - reserved).scatter(1, drawn, 0.0)
        room_elsewhere = rest.factor * rest.elsewhere
        lacking = budget[:, 0] - reserved.sum(dim=1)
        all_room = room.sum(dim=1) + room_elsewhere
        share = torch.where(all_room > 0, lacking / all_room, 0.0)
        refused = budget > 0  # else a refusal has probability 0
        return replace(
            rest,
            tail=torch.where(refused, (reserved + share[:, None] * room) / budget, rest.tail),
            factor=torch.where(refused[:, 0], rest.factor * share / budget[:, 0], rest.factor),
        )
