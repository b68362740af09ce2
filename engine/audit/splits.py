"""Acceptance of `resispec` for every split of a node's children into chosen and drawn ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..proposers.children import Ranked, propose_ranked, rank
from ..proposers.growing import TAIL_TOKENS
from ..proposers.head_policy import split_children
from ..request import SamplingParams
from ..sampling.rows import sampling_rows
from ..sampling.weights import target_law
from ..tree import Level
from ..verifiers.base import TargetLaw
from ..verifiers.resispec import solve
from .laws import Positions


@dataclass(frozen=True, slots=True)
class SplitRow:
    """One number of children, split in one way, over all positions."""

    children: int
    head: int | None  # how many were chosen; None: as the server's policy says, node by node
    mean_head: float
    acceptance: float
    standard_error: float
    over_best_fixed: float  # acceptance less that of the best fixed split in hindsight
    its_error: float  # the standard error of that difference, from position to position


class SplitTally:
    """The rule's acceptance does not depend on what is drawn, so it is computed, not sampled."""

    def __init__(self, children: Sequence[int], temperature: float) -> None:
        self._levels = {
            (count, head): Level(1, head or 0, count - (head or 0), adaptive=head is None)
            for count in children
            for head in (*range(count + 1), None)
        }
        self._temperature = temperature
        self._kept: dict[tuple[int, int | None], list[float]] = {key: [] for key in self._levels}
        self._heads: dict[tuple[int, int | None], list[int]] = {key: [] for key in self._levels}

    @torch.inference_mode()
    def add(self, positions: Positions) -> None:
        params = [SamplingParams(temperature=self._temperature)] * len(positions.target)
        rows = sampling_rows(params, positions.target.shape[1], (), positions.target.device)
        law = target_law(positions.target, rows).law
        heat = positions.draft.new_full((len(params),), self._temperature, dtype=torch.float64)
        most = max(level.num_children for level in self._levels.values())
        ranked = rank(positions.draft, heat, most + TAIL_TOKENS, positions.vocab_ids)
        for key, level in self._levels.items():
            kept, num_head = acceptance(law, ranked, heat, level)
            self._kept[key] += kept.tolist()
            self._heads[key] += num_head.tolist()

    def rows(self) -> list[SplitRow]:
        found = []
        for count, head in self._levels:
            kept = np.array(self._kept[count, head])
            fixed = [np.array(self._kept[count, other]) for other in range(count + 1)]
            over = kept - max(fixed, key=np.mean)
            size = math.sqrt(len(kept))
            found.append(
                SplitRow(
                    children=count,
                    head=head,
                    mean_head=float(np.mean(self._heads[count, head])),
                    acceptance=float(kept.mean()),
                    standard_error=float(kept.std(ddof=1) / size),
                    over_best_fixed=float(over.mean()),
                    its_error=float(over.std(ddof=1) / size),
                )
            )
        return found


def acceptance(law: TargetLaw, ranked: Ranked, temperature: Tensor, level: Level) -> tuple[Tensor, Tensor]:
    """Chance that a child is kept, ``p(head) + F``, at ``B`` nodes: [B] float64; and the heads: [B] int64."""
    num_tokens = level.num_children + TAIL_TOKENS
    num_head, num_tail = split_children(level, ranked, num_tokens)
    # Any draws do: the thresholds are those of the laws.
    draws = temperature.new_zeros(len(temperature), level.num_children)
    proposal, _ = propose_ranked(
        ranked, temperature, num_head, num_tail, level.num_children, TAIL_TOKENS, draws, level.num_tail
    )
    masses, solved = solve(law, proposal)
    return 1 - solved.remainder + masses.head.sum(dim=1), num_head
