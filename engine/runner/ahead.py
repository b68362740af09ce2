"""What Medusa heads say at the end of every walk: of the places behind the token that is drawn there."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from torch import Tensor

from resispec.models.medusa import MedusaHeads

from ..sources.medusa import NUM_TOPS


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The heads, and the states of a step's tokens."""

    heads: MedusaHeads
    hidden: Tensor  # [N, H]: the target's last states, as its output matrix reads them

    def measure(self, tokens: Tensor, num_ids: int) -> Tensor:
        """What `unpack_ahead` reads: the heads' best tokens at ``tokens`` ([n] int64): [n, K, k] int64."""
        return self.heads.tops(self.hidden[tokens], min(NUM_TOPS, num_ids), num_ids)


def unpack_ahead(rows: SequenceOf[SequenceOf[float]]) -> tuple[tuple[int, ...], ...]:
    """Of one walk. rows: each head's tokens, read back."""
    return tuple(tuple(int(token) for token in row) for row in rows)
