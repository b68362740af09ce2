"""The exact output law of a rule at one node: proposals enumerated, tests integrated, nothing sampled.

The acceptance probabilities come from the product; this file only adds them up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.engine.verifiers.base import Decision, Proposal, TargetLaw
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.trials import NodeRule

RESISPEC = ResiSpecVerifier()


@dataclass(frozen=True)
class Node:
    """One node: ``p`` and the tail's law ``q`` over the same vocabulary (``q`` is 0 on the head)."""

    p: Tensor  # [V] float64
    q: Tensor  # [V] float64, sums to 1; or 0 with num_tail 0
    head: tuple[int, ...]
    num_tail: int

    @staticmethod
    def of(p: Sequence[float], q: Sequence[float], head: Sequence[int], num_tail: int) -> Node:
        """``q`` before the head is taken out of it."""
        target = torch.tensor(p, dtype=torch.float64)
        tail = torch.tensor(q, dtype=torch.float64)
        tail[list(head)] = 0
        total = tail.sum()
        tail = tail / total if total > 0 else tail
        return Node(target / target.sum(), tail, tuple(head), num_tail if total > 0 else 0)

    @property
    def support(self) -> list[int]:
        return torch.nonzero(self.q)[:, 0].tolist()


def batch(rows: Sequence[tuple[Node, Sequence[int]]], scale: float = 1.0) -> tuple[TargetLaw, Proposal]:
    """Nodes with their tail draws as one call's tensors, padded to the widest.

    ``scale``: the weights' total, which the rule has to divide away.
    """
    vocab = max(node.p.shape[0] for node, _ in rows)
    slots = max(len(node.head) + node.num_tail for node, _ in rows)
    supports = [node.support if node.num_tail else [] for node, _ in rows]
    width = max((len(support) for support in supports), default=0)
    weights = torch.zeros(len(rows), vocab, dtype=torch.float64)
    tokens = torch.full((len(rows), slots), -1)
    tail_ids = torch.zeros(len(rows), width, dtype=torch.int64)
    tail_probs = torch.zeros(len(rows), width, dtype=torch.float64)
    tail_index = torch.zeros(len(rows), slots, dtype=torch.int64)
    for b, ((node, draws), support) in enumerate(zip(rows, supports, strict=True)):
        assert len(draws) == node.num_tail
        weights[b, : node.p.shape[0]] = node.p * scale
        children = [*node.head, *draws]
        tokens[b, : len(children)] = torch.tensor(children, dtype=torch.int64)
        tail_ids[b, : len(support)] = torch.tensor(support, dtype=torch.int64)
        tail_probs[b, : len(support)] = node.q[support]
        for k, token in enumerate(draws, len(node.head)):
            tail_index[b, k] = support.index(token)
    num_head = torch.tensor([len(node.head) for node, _ in rows])
    num_tail = torch.tensor([node.num_tail for node, _ in rows])
    max_tail = int(num_tail.max())
    proposal = Proposal(tokens, num_head, num_tail, tail_ids, tail_probs, tail_index, max_tail)
    return TargetLaw(weights), proposal


def child_probabilities(law: TargetLaw, proposal: Proposal, rule: NodeRule = RESISPEC) -> Tensor:
    """[B, K + 1]: probability that each slot is kept, the last column that none is."""
    accept = rule.trials(law, proposal).accept_probability()
    slot = torch.arange(accept.shape[1])
    in_head = slot < proposal.num_head[:, None]
    tail = torch.where(in_head, 0.0, accept)
    refused = torch.nn.functional.pad((1 - tail).cumprod(dim=1), (1, 0), value=1.0)
    kept = torch.where(in_head, accept * refused[:, -1:], tail * refused[:, :-1])
    return torch.cat([kept, 1 - kept.sum(dim=1, keepdim=True)], dim=1)


def correction_law(law: TargetLaw, proposal: Proposal, rule: NodeRule = RESISPEC) -> Tensor:
    """[B, V], normalised; 0 where no correction can happen."""
    uniforms = torch.full(proposal.tokens.shape, 0.5, dtype=torch.float64)
    decided = rule.decide(law, proposal, uniforms)
    none = Decision(torch.full_like(decided.child, -1), decided.threshold)
    weights = rule.residual(law, proposal, none).dense()
    total = weights.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


def output_law(
    node: Node, probabilities: Callable[[TargetLaw, Proposal], Tensor] = child_probabilities
) -> Tensor:
    """[V]: every tuple of draws enumerated, with its probability."""
    tuples = list(itertools.product(node.support, repeat=node.num_tail))
    law, proposal = batch([(node, draws) for draws in tuples])
    weight = torch.stack([node.q[list(draws)].prod() for draws in tuples])
    kept = probabilities(law, proposal) * weight[:, None]
    output = (correction_law(law, proposal) * kept[:, -1:]).sum(dim=0)
    tokens = proposal.tokens
    output.index_add_(0, tokens.clamp(min=0).flatten(), kept[:, :-1].flatten())
    return output


def output_laws_by_test(nodes: Sequence[Node], scale: float = 1.0, rule: NodeRule = RESISPEC) -> list[Tensor]:
    """Like `output_law` for many nodes in one call, without the product over draws.

    A test's probability depends on its own token alone, so rows whose draws are all one token show
    every test on every token, and the tests are chained afterwards.
    """
    rows = [(node, [token] * node.num_tail) for node in nodes for token in (node.support or [0])]
    law, proposal = batch(rows, scale)
    accept = rule.trials(law, proposal).accept_probability()
    correction = correction_law(law, proposal, rule)
    outputs, first = [], 0
    for node in nodes:
        support = node.support or [0]
        mine = accept[first : first + len(support)]
        heads = len(node.head)
        output = torch.zeros_like(node.p)
        reach = torch.tensor(1.0, dtype=torch.float64)
        for test in range(heads, heads + node.num_tail):
            mass = reach * node.q[support] * mine[:, test]
            output[support] += mass
            reach = reach - mass.sum()
        output[list(node.head)] += reach * mine[0, :heads]
        left = reach * (1 - mine[0, :heads].sum())
        outputs.append(output + left * correction[first, : node.p.shape[0]])
        first += len(support)
    return outputs


def acceptance(node: Node) -> float:
    """Probability that a child is kept."""
    tuples = list(itertools.product(node.support, repeat=node.num_tail))
    law, proposal = batch([(node, draws) for draws in tuples])
    weight = torch.stack([node.q[list(draws)].prod() for draws in tuples])
    return float((child_probabilities(law, proposal)[:, :-1].sum(dim=1) * weight).sum())
