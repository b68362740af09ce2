"""Joint law of the tokens of one step over whole trees: draws, decisions and walks all enumerated."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from resispec.engine.verifiers.base import Decision, TargetLaw
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.walk import Topology, Walk, at_ends, walk

from .enumerate import Node, batch, child_probabilities

TREES = json.loads((Path(__file__).parent / "data" / "trees.json").read_text())
TOLERANCE = 1e-9
Prefix = tuple[int, ...]
Laws = dict[Prefix, tuple[list[float], list[float]]]


@dataclass(frozen=True)
class Outcome:
    """All steps that can happen, each a tree of its own in one flat batch."""

    probability: Tensor  # [R]
    walked: Walk
    tokens: Tensor  # [N] of every node
    last: Tensor  # [R, V] law of the last token, normalised


def node_at(laws: Laws, prefix: Prefix, head_size: int, num_tail: int) -> Node:
    p, q = laws[prefix]
    return Node.of(p, q, range(head_size), num_tail)


def enumerate_steps(laws: Laws, head_size: int, num_tail: int, depth: int, share: bool) -> Outcome:
    """Every tuple of draws and every pair of decisions, as trees of depth 1 or 2.

    share: equal draws at the root are one node; else each has a subtree of its own.
    """
    root = node_at(laws, (), head_size, num_tail)
    below = {token: node_at(laws, (token,), head_size, num_tail) for token in range(root.p.shape[0])}
    rows, children, expanded, roots, paths, weights, picks = [], [], [], [], [], [], []

    def add_node(path: Prefix) -> int:
        paths.append(path)
        expanded.append(-1)
        return len(paths) - 1

    def expand(number: int, node: Node, draws: tuple[int, ...], nodes: list[int]) -> None:
        expanded[number] = len(rows)
        rows.append((node, draws))
        children.append(nodes)

    for draws in itertools.product(root.support, repeat=root.num_tail):
        tokens = [*root.head, *draws]
        distinct = list(dict.fromkeys(tokens)) if share else tokens
        options = [itertools.product(below[t].support, repeat=below[t].num_tail) for t in distinct]
        for deeper in itertools.product(*options) if depth == 2 else [()]:
            weight = root.q[list(draws)].prod()
            for token, own in zip(distinct, deeper, strict=depth == 2):
                weight = weight * below[token].q[list(own)].prod()
            width = len(tokens)
            for pick in itertools.product(range(-1, width), range(-1, width) if depth == 2 else [-1]):
                number = add_node(())
                roots.append(number)
                first = [add_node((token,)) for token in distinct]
                slots = [first[distinct.index(t)] for t in tokens] if share else first
                expand(number, root, draws, slots)
                for child, token, own in zip(first, distinct, deeper, strict=depth == 2):
                    leaves = [add_node((token, x)) for x in [*below[token].head, *own]]
                    expand(child, below[token], own, leaves)
                weights.append(weight)
                picks.append(pick)

    slots = max(len(c) for c in children)
    topology = Topology(
        torch.tensor([c + [-1] * (slots - len(c)) for c in children], dtype=torch.int64).view(-1, slots),
        torch.tensor(expanded),
        torch.tensor(roots),
    )
    law, proposal = batch(rows)
    chance = child_probabilities(law, proposal)
    verifier = ResiSpecVerifier()
    uniforms = torch.full((len(rows), slots), 0.5, dtype=torch.float64)
    threshold = verifier.decide(law, proposal, uniforms).threshold
    # The root keeps the first pick; every other node of that tree keeps the second.
    owner = (
        torch.bucketize(
            torch.tensor([i for i, row in enumerate(expanded) if row >= 0]), topology.root, right=True
        )
        - 1
    )
    is_root = torch.tensor([not paths[i] for i, row in enumerate(expanded) if row >= 0])
    order = torch.tensor([row for row in expanded if row >= 0])
    pick = torch.tensor(picks)
    child = torch.empty(len(rows), dtype=torch.int64)
    child[order] = torch.where(is_root, pick[owner, 0], pick[owner, 1])
    decision = Decision(child, threshold)

    root_rows = topology.expanded_row[topology.root]
    probability = torch.stack(weights) * chance[root_rows, pick[:, 0]]  # -1: the last column
    if depth == 2:
        kept_node = topology.child_node[root_rows, pick[:, 0].clamp(min=0)]
        second = chance[topology.expanded_row[kept_node], pick[:, 1]]
        once = (pick[:, 1] == -1).double()  # nothing is decided below a correction
        probability = probability * torch.where(pick[:, 0] >= 0, second, once)

    possible = probability > 0
    walked = walk(topology, decision, max_depth=depth)
    all_laws = torch.tensor([laws[path][0] for path in paths], dtype=torch.float64)
    all_law = TargetLaw(all_laws, all_laws.sum(dim=1))
    last = verifier.residual(all_law.rows(walked.final), *at_ends(proposal, decision, topology, walked))
    assert (last.sum(dim=1)[possible & (probability > 1e-12)] > 0).all()
    last = last / last.sum(dim=1, keepdim=True).clamp(min=1e-300)
    tokens = torch.tensor([path[-1] if path else -1 for path in paths])
    return Outcome(probability, walked, tokens, last)


def joint_law(outcome: Outcome, laws: Laws, length: int) -> Tensor:
    """Law of the first ``length`` tokens; those after the step are drawn from the target: [V] * length."""
    vocab = len(laws[()][0])
    p = {prefix: torch.tensor(law[0], dtype=torch.float64) for prefix, law in laws.items()}
    p = {prefix: law / law.sum() for prefix, law in p.items()}
    joint = torch.zeros((vocab,) * length, dtype=torch.float64)
    for row in torch.nonzero(outcome.probability)[:, 0].tolist():
        kept = outcome.walked.path[row]
        prefix = tuple(outcome.tokens[kept[kept >= 0]].tolist())
        for token in range(vocab):
            mass = outcome.probability[row] * outcome.last[row, token]
            spread(joint, p, (*prefix, token), mass)
    return joint


def spread(joint: Tensor, p: dict[Prefix, Tensor], prefix: Prefix, mass: Tensor) -> None:
    if len(prefix) == joint.dim():
        joint[prefix] += mass
        return
    for token in range(joint.shape[0]):
        spread(joint, p, (*prefix, token), mass * p[prefix][token])


def exact_joint(laws: Laws, length: int) -> Tensor:
    p = {prefix: torch.tensor(law[0], dtype=torch.float64) for prefix, law in laws.items()}
    joint = torch.zeros((len(laws[()][0]),) * length, dtype=torch.float64)
    one = torch.tensor(1.0, dtype=torch.float64)
    spread(joint, {prefix: law / law.sum() for prefix, law in p.items()}, (), one)
    return joint


def laws_of(tree: dict) -> Laws:
    return {tuple(law["prefix"]): (law["p"], law["q"]) for law in tree["laws"]}


@pytest.mark.parametrize("index", range(len(TREES)))
def test_joint_law_and_tokens_per_step(index):
    tree = TREES[index]
    laws, depth = laws_of(tree), tree["depth"]
    outcome = enumerate_steps(laws, tree["head_size"], tree["tail_draws"], depth, share=False)
    assert float(outcome.probability.sum()) == pytest.approx(1, abs=TOLERANCE)
    mean = float((outcome.probability * (outcome.walked.num_kept + 1)).sum())
    assert mean == pytest.approx(tree["tokens_per_step"]["resispec"], abs=TOLERANCE)
    joint = joint_law(outcome, laws, depth + 1)
    assert (joint - exact_joint(laws, depth + 1)).abs().max() < TOLERANCE


def test_equal_draws_may_share_a_node():
    rng = np.random.default_rng(30)
    prefixes = [(), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3))]
    laws = {prefix: (rng.dirichlet([1] * 3).tolist(), rng.dirichlet([1] * 3).tolist()) for prefix in prefixes}
    outcome = enumerate_steps(laws, 0, 2, 2, share=True)
    assert (joint_law(outcome, laws, 3) - exact_joint(laws, 3)).abs().max() < TOLERANCE


def test_the_harness_sees_a_wrong_correction():
    """Control: corrections drawn from the target instead of the residual must show."""
    laws = laws_of(next(tree for tree in TREES if tree["depth"] == 1 and tree["tail_draws"] == 2))
    outcome = enumerate_steps(laws, 0, 2, 1, share=False)
    target = torch.tensor(laws[()][0], dtype=torch.float64)
    refused = outcome.walked.num_kept[:, None] == 0
    wrong = replace(outcome, last=torch.where(refused, target / target.sum(), outcome.last))
    assert (joint_law(wrong, laws, 2) - exact_joint(laws, 2)).abs().max() > 1e-3


def test_no_tree_at_all():
    """Requests without candidates: the walk stays at the root."""
    topology = Topology(torch.empty(0, 1, dtype=torch.int64), torch.full((2,), -1), torch.tensor([0, 1]))
    decision = Decision(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64))
    walked = walk(topology, decision, max_depth=3)
    assert walked.num_kept.tolist() == [0, 0]
    assert walked.path.tolist() == [[-1] * 3] * 2
