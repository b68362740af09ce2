"""Acceptance of every verifier at positions of a pair, and the ceilings of the same candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..drawing import Drawing
from ..proposers.children import propose_ranked, rank
from ..proposers.growing import TAIL_TOKENS
from ..proposers.head_policy import split_children
from ..request import SamplingParams
from ..sampling.rows import sampling_rows
from ..sampling.weights import target_law
from ..tree import Level, plan_shape
from ..verifiers.base import AnyVerifier, TargetLaw
from ..verifiers.table import VERIFIERS
from .laws import Positions
from .node import turns
from .position_draws import PositionDraws, ceilings, every_draw, renumber

_PROPOSALS = 32  # drawn at each position, where a node has several draws; of one draw all tokens are seen
_CHUNK = 4  # positions at a time


@dataclass(frozen=True, slots=True)
class Row:
    """One verifier with one number of children, over all positions."""

    verifier: str
    exact: bool
    children: int
    head: float  # mean number of those that were chosen
    tail: float  # of those that were drawn
    acceptance: float  # mean chance that a child is kept
    standard_error: float  # of that mean, over positions
    ceiling: float | None  # mean of the bounds for the same candidates; None: not known
    of_ceiling: float | None  # acceptance over ceiling


def level_for(verifier: AnyVerifier, children: int) -> Level | None:
    """The first level that the server plans for a tree of so many candidates; None: none so wide."""
    if verifier.drawing is Drawing.CHAIN:
        return plan_shape(1, 1, greedy=False, drawing=Drawing.CHAIN).levels[0] if children == 1 else None
    return plan_shape(children, 1, greedy=False, drawing=verifier.drawing).levels[0]


class Tally:
    """Chances and ceilings by verifier and children, a number for each position."""

    def __init__(self, children: Sequence[int], temperature: float, seed: int) -> None:
        self._children = tuple(children)
        self._temperature = temperature
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: dict[tuple[str, int], list[float]] = {}
        self._ceilings: dict[tuple[str, int], list[float]] = {}
        self._split: dict[tuple[str, int], list[tuple[int, int]]] = {}  # chosen and drawn children

    @torch.inference_mode()
    def add(self, positions: Positions) -> None:
        count = len(positions.target)
        params = [SamplingParams(temperature=self._temperature)] * count
        rows = sampling_rows(params, positions.target.shape[1], (), positions.target.device)
        law = target_law(positions.target, rows).law
        for start in range(0, count, _CHUNK):
            index = torch.arange(start, min(start + _CHUNK, count), device=law.weights.device)
            self._add_chunk(law.rows(index), positions.draft[index], positions.vocab_ids)

    def _add_chunk(self, law: TargetLaw, draft: Tensor, vocab_ids: Tensor | None) -> None:
        count = len(law.weights)
        for children in self._children:
            made: dict[Drawing, tuple[PositionDraws, list[float]]] = {}
            for name, verifier in VERIFIERS.items():
                level = level_for(verifier, children)
                if level is None:
                    continue
                drawing = verifier.drawing
                if drawing not in made:
                    drawn = self._draw(law, draft, vocab_ids, level, drawing)
                    made[drawing] = drawn, ceilings(drawn, drawing)
                drawn, bounds = made[drawing]
                chance = turns(verifier, drawn.law, drawn.proposal).chance
                kept = (1 - (1 - chance).prod(dim=1)).view(count, -1) * drawn.weight
                self._kept.setdefault((name, children), []).extend(kept.sum(dim=1).tolist())
                self._ceilings.setdefault((name, children), []).extend(bounds)
                first = torch.arange(0, len(chance), len(chance) // count, device=chance.device)
                split = torch.stack([drawn.proposal.num_head, drawn.proposal.num_tail], dim=1)[first]
                self._split.setdefault((name, children), []).extend(split.tolist())

    def _draw(
        self, law: TargetLaw, draft: Tensor, vocab_ids: Tensor | None, level: Level, drawing: Drawing
    ) -> PositionDraws:
        copies = _PROPOSALS if level.num_tail > 1 else 1
        logits = draft.repeat_interleave(copies, dim=0)
        temperature = logits.new_full((len(logits),), self._temperature, dtype=torch.float64)
        num_tokens = level.num_children + TAIL_TOKENS
        ranked = rank(logits, temperature, num_tokens, vocab_ids)
        proposal, _ = propose_ranked(
            ranked,
            temperature,
            *split_children(level, ranked, num_tokens),
            level.num_children,
            TAIL_TOKENS,
            self._uniforms(len(draft), copies, level.num_children).to(draft.device),
            max_tail=level.num_tail,
            drawing=drawing,
        )
        drawn = renumber(law, proposal, copies)
        return drawn if copies > 1 else every_draw(drawn)

    def _uniforms(self, count: int, copies: int, children: int) -> Tensor:
        """[count * copies, children]: in each slot, one in every stratum of equal size at a position.

        Each is uniform and a proposal's are independent, so means are right; they just vary less.
        """
        shape = (count, copies, children)
        order = torch.rand(shape, generator=self._generator, dtype=torch.float64).argsort(dim=1)
        within = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        return ((order + within) / copies).clamp(max=1 - 2.0**-53).flatten(0, 1)

    def rows(self) -> list[Row]:
        result = []
        for (name, children), kept in self._kept.items():
            head, tail = np.mean(self._split[name, children], axis=0)
            ceilings = self._ceilings[name, children]
            mean = float(np.mean(kept))
            bound = float(np.mean(ceilings)) if len(ceilings) == len(kept) else None
            result.append(
                Row(
                    verifier=name,
                    exact=VERIFIERS[name].exact,
                    children=children,
                    head=float(head),
                    tail=float(tail),
                    acceptance=mean,
                    standard_error=float(np.std(kept, ddof=1) / math.sqrt(len(kept))),
                    ceiling=bound,
                    of_ceiling=mean / bound if bound else None,
                )
            )
        return result
