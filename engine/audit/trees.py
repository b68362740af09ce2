"""The joint law of the tokens of one step over a whole tree, and how many they are, by enumeration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..verifiers.base import AnyVerifier
from ..verifiers.joint import joint_trials
from ..verifiers.masses import split
from ..verifiers.resispec_tree import ResiSpecTreeVerifier
from .node import correction_laws, node_law
from .proposals import Source, all_tuples, source
from .read import Prefix, TreeCase


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gives from some node on, together with the probability that it gets there."""

    joint: Tensor  # [V] * (levels left + 1): of the next tokens; those after the step are the target's
    tokens: float  # expected number from here on, 0 where the node fails
    accepts: float  # probability that the node does not fail


def tree_step(verifier: AnyVerifier, tree: TreeCase) -> Step:
    """A step over the complete tree. Raises TooManyError."""
    if isinstance(verifier, ResiSpecTreeVerifier):
        return _Joint(verifier, tree).step((), 1.0)
    return _per_node(verifier, tree, ())


def target_joint(tree: TreeCase, prefix: Prefix = ()) -> Tensor:
    """The target's own law of the tokens after ``prefix``, one more than there are levels left."""
    p = torch.tensor(tree.laws[prefix][0], dtype=torch.float64)
    if len(prefix) == tree.depth:
        return p
    rest = torch.stack([target_joint(tree, (*prefix, token)) for token in range(tree.vocabulary)])
    return p.view(-1, *[1] * (rest.dim() - 1)) * rest


def tree_error(tree: TreeCase, step: Step) -> float:
    """The largest difference between the joint law and the target's."""
    return float((step.joint - target_joint(tree)).abs().max())


def _per_node(verifier: AnyVerifier, tree: TreeCase, prefix: Prefix) -> Step:
    """Decisions at different nodes are independent, so each node's law stands for itself."""
    if len(prefix) == tree.depth:
        return Step(target_joint(tree, prefix), 1.0, 1.0)
    here = node_law(verifier, source(tree.node(prefix), verifier.drawing))
    parts, tokens = [], 1.0
    for token, kept in enumerate(here.kept.tolist()):
        after = (*prefix, token)
        below = _per_node(verifier, tree, after)
        parts.append(kept * below.joint + float(here.corrected[token]) * target_joint(tree, after))
        tokens += kept * below.tokens
    return Step(torch.stack(parts), tokens, 1.0)


class _Joint:
    """Decisions in view of those below: a child is entered with the share it must accept.

    Given the draws at a node, its children's trees are independent of each other, so the chance that a
    child accepts is added up over all below it, and the node's turns are gone through with these chances.
    """

    def __init__(self, verifier: ResiSpecTreeVerifier, tree: TreeCase) -> None:
        self._verifier = verifier
        self._tree = tree
        self._known: dict[tuple[Prefix, float], Step] = {}

    def step(self, prefix: Prefix, omega: float) -> Step:
        """Of the node after ``prefix``, entered with the weight ``omega``."""
        known = self._known.get((prefix, omega))
        if known is None:
            known = self._known[prefix, omega] = self._enumerate(prefix, omega)
        return known

    def _enumerate(self, prefix: Prefix, omega: float) -> Step:
        tree = self._tree
        target = target_joint(tree, prefix)
        if len(prefix) == tree.depth:
            return Step(omega * target, omega, omega)
        joint, tokens, accepts = torch.zeros_like(target), 0.0, 0.0
        onward = torch.stack([target_joint(tree, (*prefix, token)) for token in range(tree.vocabulary)])
        for row in _rows(self._verifier, source(tree.node(prefix), self._verifier.drawing), omega):
            reach = row.weight
            for token, share in row.asked:
                below = self.step((*prefix, token), share)
                joint[token] += reach * below.joint
                tokens += reach * (below.tokens + below.accepts)
                accepts += reach * below.accepts
                reach *= 1 - below.accepts
            corrected = reach * row.correction
            joint += corrected * row.law.view(-1, *[1] * (onward.dim() - 1)) * onward
            tokens += corrected
            accepts += corrected
        return Step(joint, tokens, accepts)


@dataclass(frozen=True, slots=True)
class _Row:
    """One tuple of draws at a node."""

    weight: float
    asked: list[tuple[int, float]]  # token and share of each child, in turn
    correction: float  # chance to accept with a correction, if no child accepts
    law: Tensor  # [V] of the correction


def _rows(verifier: ResiSpecTreeVerifier, node: Source, omega: float) -> list[_Row]:
    rows: list[_Row] = []
    heads = len(node.head)
    turns = [*range(heads, heads + node.num_tail), *range(heads)]
    for drawn in all_tuples(node):
        weights = torch.full_like(drawn.weight, omega)
        even = torch.ones_like(drawn.weight, dtype=torch.bool)
        trials = joint_trials(split(drawn.law, drawn.proposal), drawn.proposal, weights, even)
        chance = torch.where(trials.correction > 0, trials.correction / trials.correction_scale, 0.0)
        laws = correction_laws(verifier, drawn.law, drawn.proposal, trials.threshold)
        tokens, shares = drawn.proposal.tokens.tolist(), trials.weight.tolist()
        for row, weight in enumerate(drawn.weight.tolist()):
            asked = [(tokens[row][turn], shares[row][turn]) for turn in turns]
            rows.append(_Row(weight, asked, float(chance[row]), laws[row]))
    return rows
