"""Rules over draws of several kinds, by enumeration: every tuple of draws of many nodes in one call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resispec.engine.drawing import Drawing
from resispec.engine.verifiers.base import Proposal, TargetLaw
from resispec.engine.verifiers.trials import NodeRule

from .enumerate import Node, batch, child_probabilities, correction_law


@dataclass(frozen=True)
class Enumerated:
    law: Tensor  # [V]: of the token that comes out
    acceptance: float


def tuples_of(node: Node, drawing: Drawing) -> list[tuple[tuple[int, ...], float]]:
    """Each tuple of tail draws with its probability; a tail without replacement ends with its support."""
    if drawing is not Drawing.WITHOUT_REPLACEMENT:
        tuples = itertools.product(node.support, repeat=node.num_tail)
        return [(draws, float(node.q[list(draws)].prod())) for draws in tuples]
    result = []
    for draws in itertools.permutations(node.support, node.num_tail):
        weight, left = 1.0, node.q.clone()
        for token in draws:
            weight *= float(left[token] / left.sum())  # summed, not subtracted: it may be tiny
            left[token] = 0
        result.append((draws, weight))
    return result


def number_of_tuples(node: Node, drawing: Drawing) -> int:
    count = 1
    for drawn in range(node.num_tail):
        count *= len(node.support) - (drawn if drawing is Drawing.WITHOUT_REPLACEMENT else 0)
    return count


def proposed(nodes: Sequence[Node], drawing: Drawing) -> tuple[TargetLaw, Proposal, Tensor]:
    """Every tuple of every node as a row, and its probability."""
    rows = [(node, *each) for node in nodes for each in tuples_of(node, drawing)]
    law, proposal = batch([(node, draws) for node, draws, _ in rows])
    weight = torch.tensor([weight for *_, weight in rows], dtype=torch.float64)
    return law, replace(proposal, drawings=frozenset({drawing})), weight


def enumerate_nodes(rule: NodeRule, nodes: Sequence[Node], drawing: Drawing) -> list[Enumerated]:
    law, proposal, weight = proposed(nodes, drawing)
    kept = child_probabilities(law, proposal, rule) * weight[:, None]
    corrected = correction_law(law, proposal, rule) * kept[:, -1:]
    results, first = [], 0
    for node in nodes:
        mine = slice(first, first := first + number_of_tuples(node, drawing))
        output = corrected[mine].sum(dim=0)
        output.index_add_(0, proposal.tokens[mine].clamp(min=0).flatten(), kept[mine, :-1].flatten())
        results.append(Enumerated(output[: node.p.shape[0]], float(kept[mine, :-1].sum())))
    return results
