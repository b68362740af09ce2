"""Every step that can happen over a tree: each tuple of draws with each pair of decisions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resispec.engine.verifiers.base import Decision, TargetLaw
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.walk import Topology, Walk, at_ends, walk

from .enumerate import Node, batch, child_probabilities

Prefix = tuple[int, ...]
Laws = dict[Prefix, tuple[list[float], list[float]]]  # p and q after each prefix


@dataclass(frozen=True)
class Outcome:
    """All steps that can happen, each a tree of its own in one flat batch."""

    probability: Tensor  # [R]
    walked: Walk
    tokens: Tensor  # [N] of every node
    last: Tensor  # [R, V] law of the last token, normalised


@dataclass
class Forest:
    """Trees laid end to end. In tree ``r`` the root keeps ``picks[r][0]``, all others ``picks[r][1]``."""

    paths: list[Prefix] = field(default_factory=list)  # of every node, from its root
    tree: list[int] = field(default_factory=list)  # of every node
    expanded_row: list[int] = field(default_factory=list)
    rows: list[tuple[Node, tuple[int, ...]]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)  # the node of every row
    children: list[list[int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)  # probability of each tree's draws
    picks: list[tuple[int, int]] = field(default_factory=list)

    def add_tree(self, weight: float, pick: tuple[int, int]) -> int:
        self.roots.append(len(self.paths))
        self.weights.append(weight)
        self.picks.append(pick)
        return self.add_node(())

    def add_node(self, path: Prefix) -> int:
        self.paths.append(path)
        self.tree.append(len(self.roots) - 1)
        self.expanded_row.append(-1)
        return len(self.paths) - 1

    def expand(self, number: int, node: Node, draws: tuple[int, ...], children: list[int]) -> None:
        self.expanded_row[number] = len(self.rows)
        self.rows.append((node, draws))
        self.owners.append(number)
        self.children.append(children)

    def topology(self) -> Topology:
        slots = max(len(nodes) for nodes in self.children)
        padded = [nodes + [-1] * (slots - len(nodes)) for nodes in self.children]
        return Topology(
            torch.tensor(padded, dtype=torch.int64).view(-1, slots),
            torch.tensor(self.expanded_row),
            torch.tensor(self.roots),
        )

    def kept(self) -> Tensor:
        """The slot that every row keeps: [E]."""
        return torch.tensor([self.picks[self.tree[n]][1 if self.paths[n] else 0] for n in self.owners])


def tuples_of_draws(node: Node) -> Iterator[tuple[tuple[int, ...], float]]:
    """Each tuple of tail draws with its probability."""
    for draws in itertools.product(node.support, repeat=node.num_tail):
        yield draws, float(node.q[list(draws)].prod())


def grow(laws: Laws, head_size: int, num_tail: int, depth: int, *, share: bool) -> Forest:
    """Trees of depth 1 or 2. share: equal draws at the root are one node; else each has its own subtree."""

    def node_at(prefix: Prefix) -> Node:
        p, q = laws[prefix]
        return Node.of(p, q, range(head_size), num_tail)

    forest = Forest()
    root = node_at(())
    below = {token: node_at((token,)) for token in range(root.p.shape[0])}
    for draws, root_weight in tuples_of_draws(root):
        tokens = [*root.head, *draws]
        distinct = list(dict.fromkeys(tokens)) if share else tokens
        options = [list(tuples_of_draws(below[token])) for token in distinct] if depth == 2 else []
        slots = range(-1, len(tokens))
        for deeper in itertools.product(*options):
            weight = root_weight
            for _, own_weight in deeper:
                weight *= own_weight
            for pick in itertools.product(slots, slots if depth == 2 else [-1]):
                number = forest.add_tree(weight, pick)
                first = [forest.add_node((token,)) for token in distinct]
                forest.expand(
                    number, root, draws, [first[distinct.index(t)] for t in tokens] if share else first
                )
                for child, token, (own, _) in zip(first, distinct, deeper, strict=depth == 2):
                    node = below[token]
                    leaves = [forest.add_node((token, x)) for x in [*node.head, *own]]
                    forest.expand(child, node, own, leaves)
    return forest


def probabilities(forest: Forest, topology: Topology, chance: Tensor) -> Tensor:
    """Of each tree: its draws, times its decisions ([R]). chance: [E, K + 1], the last column: none kept."""
    pick = torch.tensor(forest.picks)
    root_row = topology.expanded_row[topology.root]
    result = torch.tensor(forest.weights, dtype=torch.float64) * chance[root_row, pick[:, 0]]
    child = topology.child_node[root_row, pick[:, 0].clamp(min=0)]
    child_row = topology.expanded_row[child]
    second = chance[child_row.clamp(min=0), pick[:, 1]]
    # Below a correction and at a leaf nothing is decided; one of the listed picks stands for all.
    undecided = (pick[:, 0] < 0) | (child_row < 0)
    return result * torch.where(undecided, (pick[:, 1] == -1).double(), second)


def enumerate_steps(laws: Laws, head_size: int, num_tail: int, depth: int, *, share: bool) -> Outcome:
    forest = grow(laws, head_size, num_tail, depth, share=share)
    topology = forest.topology()
    law, proposal = batch(forest.rows)
    verifier = ResiSpecVerifier()
    uniforms = torch.full(proposal.tokens.shape, 0.5, dtype=torch.float64)
    decision = Decision(forest.kept(), verifier.decide(law, proposal, uniforms).threshold)
    probability = probabilities(forest, topology, child_probabilities(law, proposal))

    walked = walk(topology, decision, max_depth=depth)
    ends = [laws[forest.paths[number]][0] for number in walked.final.tolist()]
    weights = torch.tensor(ends, dtype=torch.float64)
    end_law = TargetLaw(weights)
    last = verifier.residual(end_law, *at_ends(proposal, decision, topology, walked)).dense()
    assert (last.sum(dim=1)[probability > 1e-12] > 0).all()
    last = last / last.sum(dim=1, keepdim=True).clamp(min=1e-300)
    return Outcome(
        probability, walked, torch.tensor([path[-1] if path else -1 for path in forest.paths]), last
    )


def joint_law(outcome: Outcome, laws: Laws, length: int) -> Tensor:
    """Law of the first ``length`` tokens; those after the step are drawn from the target: [V] * length."""
    vocab = len(laws[()][0])
    joint = torch.zeros((vocab,) * length, dtype=torch.float64)
    for row in torch.nonzero(outcome.probability)[:, 0].tolist():
        kept = outcome.walked.path[row]
        prefix = tuple(outcome.tokens[kept[kept >= 0]].tolist())
        for token in range(vocab):
            mass = float(outcome.probability[row] * outcome.last[row, token])
            spread(joint, laws, (*prefix, token), mass)
    return joint


def exact_joint(laws: Laws, length: int) -> Tensor:
    joint = torch.zeros((len(laws[()][0]),) * length, dtype=torch.float64)
    spread(joint, laws, (), 1.0)
    return joint


def spread(joint: Tensor, laws: Laws, prefix: Sequence[int], mass: float) -> None:
    prefix = tuple(prefix)
    if len(prefix) == joint.dim():
        joint[prefix] += mass
        return
    p = laws[prefix][0]
    for token in range(joint.shape[0]):
        spread(joint, laws, (*prefix, token), mass * p[token] / sum(p))
