"""Every proposal that can be drawn at a node, as rows of one batch, each with its probability."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..drawing import Drawing
from ..verifiers.base import Proposal, TargetLaw
from .read import Case

_ROWS = 1 << 15  # of one batch


@dataclass(frozen=True, slots=True)
class Source:
    """How the children of one node are made: a head, and draws from ``q`` over ``support``."""

    p: Tensor  # [V] float64
    head: tuple[int, ...]
    support: tuple[int, ...]
    q: tuple[float, ...]  # over the support; sums to 1
    num_tail: int
    drawing: Drawing

    @property
    def distinct(self) -> bool:
        return self.drawing is Drawing.WITHOUT_REPLACEMENT

    @property
    def num_tuples(self) -> int:
        """Proposals that can be drawn."""
        size = len(self.support)
        return math.perm(size, self.num_tail) if self.distinct else size**self.num_tail

    @property
    def num_multisets(self) -> int:
        """Proposals that differ in more than the order of independent draws."""
        return math.comb(len(self.support) + self.num_tail - 1, self.num_tail) if self.num_tail else 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """``B`` proposals at one node."""

    law: TargetLaw
    proposal: Proposal
    weight: Tensor  # [B] float64: the probability of drawing each


def source(case: Case, drawing: Drawing) -> Source:
    """What a rule that wants ``drawing`` gets of a case.

    A tail beside a head is drawn from ``q`` without the head; a rule that wants chosen children takes both.
    Rules without a head draw from ``q`` itself; a chain is one draw. No more can be drawn without
    replacement than there are tokens.
    """
    if drawing is Drawing.HEAD:
        drawing = Drawing.HEAD_AND_TAIL
    head = case.head if drawing is Drawing.HEAD_AND_TAIL else ()
    support = tuple(token for token, mass in enumerate(case.q) if mass > 0 and token not in head)
    total = math.fsum(case.q[token] for token in support)
    num_tail = 1 if drawing is Drawing.CHAIN else case.tail_draws
    if drawing is Drawing.WITHOUT_REPLACEMENT:
        num_tail = min(num_tail, len(support))
    if not support:
        num_tail = 0
    q = tuple(case.q[token] / total for token in support)
    return Source(torch.tensor(case.p, dtype=torch.float64), head, support, q, num_tail, drawing)


def all_tuples(node: Source) -> Iterator[Drawn]:
    """Every tuple of draws, in batches."""
    places = range(len(node.support))
    tuples = (
        itertools.permutations(places, node.num_tail)
        if node.distinct
        else itertools.product(places, repeat=node.num_tail)
    )
    while part := list(itertools.islice(tuples, _ROWS)):
        index = np.asarray(part, dtype=np.int64).reshape(len(part), node.num_tail)
        yield Drawn(*batch(node, torch.from_numpy(index)), _weights(node, index))


def all_multisets(node: Source) -> Iterator[Drawn]:
    """Every multiset of independent draws, as its sorted tuple, in batches."""
    multisets = itertools.combinations_with_replacement(range(len(node.support)), node.num_tail)
    while part := list(itertools.islice(multisets, _ROWS)):
        index = np.asarray(part, dtype=np.int64).reshape(len(part), node.num_tail)
        orders = torch.tensor([_orders(draws) for draws in part], dtype=torch.float64)
        yield Drawn(*batch(node, torch.from_numpy(index)), _weights(node, index) * orders)


def one_token_tuples(node: Source) -> Drawn:
    """For each token of the tail's law, the tuple of this token alone. The weights are ``q``."""
    size = len(node.support) if node.num_tail else 1
    index = torch.arange(size)[:, None].expand(size, node.num_tail)
    weight = torch.tensor(node.q if node.num_tail else [1.0], dtype=torch.float64)
    return Drawn(*batch(node, index), weight)


def batch(node: Source, index: Tensor) -> tuple[TargetLaw, Proposal]:
    """Proposals with draws ``index`` [B, n], places in the tail's support."""
    rows, num_tail = index.shape
    heads = len(node.head)
    support = torch.tensor(node.support if num_tail else (), dtype=torch.int64)
    head = torch.tensor(node.head, dtype=torch.int64).expand(rows, heads)
    tail = support[index]
    inert = 1 if heads + num_tail == 0 else 0  # verifiers want a slot
    p = node.p.expand(rows, -1)
    ones = torch.ones(rows, dtype=torch.int64)
    proposal = Proposal(
        tokens=torch.cat([head, tail, torch.full((rows, inert), -1)], dim=1),
        num_head=ones * heads,
        num_tail=ones * num_tail,
        tail_ids=support.expand(rows, -1),
        tail_probs=torch.tensor(node.q if num_tail else (), dtype=torch.float64).expand(rows, -1),
        tail_index=torch.cat([torch.zeros(rows, heads + inert, dtype=torch.int64), index], dim=1),
        max_tail=num_tail,
        drawings=frozenset({node.drawing}),
    )
    return TargetLaw(p), proposal


def _orders(draws: Sequence[int]) -> int:
    """In how many orders a multiset can be drawn."""
    return math.factorial(len(draws)) // math.prod(math.factorial(n) for n in Counter(draws).values())


def _weights(node: Source, index: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Tensor:
    """The probability of each tuple of draws."""
    q = np.asarray(node.q)
    weight = np.ones(len(index))
    left = np.tile(q, (len(index), 1)) if node.distinct else None
    for column in index.T:
        if left is None:
            weight *= q[column]
            continue
        rows = np.arange(len(index))
        # Summed over what is left, not subtracted: it may be tiny.
        weight *= left[rows, column] / left.sum(axis=1)
        left[rows, column] = 0
    return torch.from_numpy(weight)


def subset_masks(node: Source) -> tuple[Sequence[int], Sequence[float]]:
    """Of every tuple: the set of places drawn, as bits, and its probability. Small nodes only."""
    masks: list[int] = []
    weights: list[float] = []
    places = range(len(node.support))
    tuples = itertools.permutations(places, node.num_tail)
    while part := list(itertools.islice(tuples, _ROWS)):
        index = np.asarray(part, dtype=np.int64).reshape(len(part), node.num_tail)
        masks += (1 << index).sum(axis=1).tolist()
        weights += _weights(node, index).tolist()
    return masks, weights
