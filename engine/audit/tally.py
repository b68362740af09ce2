"""Acceptance of every verifier at positions of a pair, and the ceilings of the same candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..drawing import Drawing
from ..proposers.children import propose
from ..proposers.draft import TAIL_TOKENS
from ..request import SamplingParams
from ..sampling.rows import sampling_rows
from ..sampling.weights import target_law
from ..tree import Level, plan_shape
from ..verifiers.base import AnyVerifier, Proposal, TargetLaw
from ..verifiers.masses import split
from ..verifiers.table import VERIFIERS
from .ceiling import ceiling
from .laws import Positions
from .node import turns
from .proposals import Source

_PROPOSALS = 32  # drawn at each position
_CHUNK = 16  # positions at a time


@dataclass(frozen=True, slots=True)
class Row:
    """One verifier with one number of children, over all positions."""

    verifier: str
    exact: bool
    children: int
    head: int
    tail: int
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

    @torch.inference_mode()
    def add(self, positions: Positions) -> None:
        count = len(positions.target)
        params = [SamplingParams(temperature=self._temperature)] * count
        rows = sampling_rows(params, positions.target.shape[1], (), positions.target.device)
        law = target_law(positions.target, rows).law
        for start in range(0, count, _CHUNK):
            index = torch.arange(start, min(start + _CHUNK, count), device=law.total.device)
            self._add_chunk(law.rows(index), positions.draft[index], positions.vocab_ids)

    def _add_chunk(self, law: TargetLaw, draft: Tensor, vocab_ids: Tensor | None) -> None:
        count = len(law.total)
        repeated = torch.arange(count, device=draft.device).repeat_interleave(_PROPOSALS)
        logits = draft[repeated]
        for children in self._children:
            uniforms = self._uniforms(count, children).to(draft.device)
            made: dict[Drawing, tuple[TargetLaw, Proposal, list[float]]] = {}
            for name, verifier in VERIFIERS.items():
                level = level_for(verifier, children)
                if level is None:
                    continue
                drawing = verifier.drawing
                if drawing not in made:
                    proposal = self._propose(logits, level, drawing, uniforms, vocab_ids)
                    laws, proposal = _renumber(law, proposal)
                    made[drawing] = laws, proposal, _ceilings(laws, proposal, drawing)
                laws, proposal, bounds = made[drawing]
                chance = turns(verifier, laws, proposal).chance
                kept = 1 - (1 - chance).prod(dim=1).view(count, _PROPOSALS).mean(dim=1)
                self._kept.setdefault((name, children), []).extend(kept.tolist())
                self._ceilings.setdefault((name, children), []).extend(bounds)

    def _uniforms(self, count: int, children: int) -> Tensor:
        """[count * proposals, children]: in each slot, one in every stratum of equal size at a position.

        Each is uniform and a proposal's are independent, so means are right; they just vary less.
        """
        shape = (count, _PROPOSALS, children)
        order = torch.rand(shape, generator=self._generator, dtype=torch.float64).argsort(dim=1)
        within = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        return ((order + within) / _PROPOSALS).clamp(max=1 - 2.0**-53).flatten(0, 1)

    def _propose(
        self,
        logits: Tensor,
        level: Level,
        drawing: Drawing,
        uniforms: Tensor,
        vocab_ids: Tensor | None,
    ) -> Proposal:
        ones = torch.ones(len(logits), dtype=torch.int64, device=logits.device)
        return propose(
            logits,
            ones * self._temperature,
            ones * level.num_head,
            ones * level.num_tail,
            level.num_children,
            TAIL_TOKENS,
            uniforms,
            vocab_ids,
            max_tail=level.num_tail,
            drawing=drawing,
        )[0]

    def rows(self) -> list[Row]:
        result = []
        for (name, children), kept in self._kept.items():
            level = level_for(VERIFIERS[name], children)
            assert level is not None
            ceilings = self._ceilings[name, children]
            mean = float(np.mean(kept))
            bound = float(np.mean(ceilings)) if len(ceilings) == len(kept) else None
            result.append(
                Row(
                    verifier=name,
                    exact=VERIFIERS[name].exact,
                    children=children,
                    head=level.num_head,
                    tail=level.num_tail,
                    acceptance=mean,
                    standard_error=float(np.std(kept, ddof=1) / math.sqrt(len(kept))),
                    ceiling=bound,
                    of_ceiling=mean / bound if bound else None,
                )
            )
        return result


def _renumber(law: TargetLaw, proposal: Proposal) -> tuple[TargetLaw, Proposal]:
    """The same nodes over a small vocabulary: head and tail's tokens, and one token for all others.

    law: of each position; proposal: several of each. No rule sees any difference, and rows are short.
    """
    firsts = proposal.rows(torch.arange(0, len(proposal.tokens), _PROPOSALS, device=law.total.device))
    masses = split(law, firsts)
    slots, width = proposal.tokens.shape[1], proposal.tail_ids.shape[1]
    p = torch.cat([masses.head, masses.tail, masses.outside[:, None]], dim=1)
    p = p.repeat_interleave(_PROPOSALS, dim=0)
    slot = torch.arange(slots, device=p.device)
    in_head = slot < proposal.num_head[:, None]
    tokens = torch.where(in_head, slot, slots + proposal.tail_index)
    places = torch.arange(width, device=p.device).expand(len(p), -1)
    return TargetLaw(p, p.sum(dim=1)), replace(
        proposal,
        tokens=torch.where(proposal.tokens >= 0, tokens, -1),
        tail_ids=slots + places,
    )


def _ceilings(laws: TargetLaw, proposal: Proposal, drawing: Drawing) -> list[float]:
    """Of every position whose bound can be found."""
    rows = range(0, len(laws.total), _PROPOSALS)
    bounds = [ceiling(_source(laws, proposal, row, drawing)) for row in rows]
    return [bound for bound in bounds if bound is not None]


def _source(laws: TargetLaw, proposal: Proposal, row: int, drawing: Drawing) -> Source:
    """A row's candidates, as the ceiling wants them."""
    used = proposal.tail_probs[row] > 0
    num_head = int(proposal.num_head[row])
    return Source(
        p=(laws.weights[row].double() / laws.total[row]).cpu(),
        head=tuple(proposal.tokens[row, :num_head].tolist()),
        support=tuple(proposal.tail_ids[row][used].tolist()),
        q=tuple(proposal.tail_probs[row][used].tolist()),
        num_tail=int(proposal.num_tail[row]),
        drawing=drawing,
    )
