"""Every step of a rule over whole trees: each realised tree, each way its coins can fall.

A coin's chance comes from the product's trials; how coins make a decision is left to its `decide_tree`, which
gets uniforms so low or so high that they say what the coin shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from resispec.engine.drawing import Drawing
from resispec.engine.verifiers.base import Links, Proposal, TargetLaw
from resispec.engine.verifiers.resispec_tree import ResiSpecTreeVerifier
from resispec.engine.verifiers.walk import Topology, at_ends, walk

from .enumerate import Node, batch
from .forest import Laws, Prefix, spread, tuples_of_draws

HIGH = 1 - 2.0**-53


@dataclass(frozen=True)
class Plan:
    """How a node is expanded."""

    num_head: int
    num_tail: int
    even: bool = True


# From the slots and the tokens on the way to a node; None: a leaf.
Planner = Callable[[tuple[int, ...], Prefix], Plan | None]


@dataclass(frozen=True)
class Tree:
    prefix: Prefix
    plan: Plan | None = None
    node: Node | None = None
    draws: tuple[int, ...] = ()
    children: tuple[Tree, ...] = ()


@dataclass
class Flat:
    """Trees laid end to end."""

    prefixes: list[Prefix] = field(default_factory=list)
    expanded_row: list[int] = field(default_factory=list)
    rows: list[tuple[Node, tuple[int, ...]]] = field(default_factory=list)
    even: list[bool] = field(default_factory=list)
    levels: list[list[int]] = field(default_factory=list)
    child_nodes: list[list[int]] = field(default_factory=list)
    tree_of_row: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add(self, tree: Tree, depth: int = 0) -> int:
        number = len(self.prefixes)
        self.prefixes.append(tree.prefix)
        self.expanded_row.append(-1)
        if tree.plan is not None and tree.node is not None:
            row = self.expanded_row[number] = len(self.rows)
            self.rows.append((tree.node, tree.draws))
            self.even.append(tree.plan.even)
            self.tree_of_row.append(len(self.roots))
            self.levels += [[] for _ in range(depth + 1 - len(self.levels))]
            self.levels[depth].append(row)
            self.child_nodes.append([])
            self.child_nodes[row] = [self.add(child, depth + 1) for child in tree.children]
        return number


def realised(
    laws: Laws, plan: Planner, slots: tuple[int, ...] = (), prefix: Prefix = ()
) -> Iterator[tuple[float, Tree]]:
    """Every tree that may be drawn, with its probability."""
    wanted = plan(slots, prefix)
    if wanted is None:
        yield 1.0, Tree(prefix)
        return
    p, q = laws[prefix]
    node = Node.of(p, q, range(wanted.num_head), wanted.num_tail)
    for draws, weight in tuples_of_draws(node):
        tokens = [*node.head, *draws]
        below = [list(realised(laws, plan, (*slots, s), (*prefix, x))) for s, x in enumerate(tokens)]
        for chosen in itertools.product(*below):
            whole = weight
            for part, _ in chosen:
                whole *= part
            yield whole, Tree(prefix, wanted, node, draws, tuple(tree for _, tree in chosen))


def _chances(verifier: ResiSpecTreeVerifier, law: TargetLaw, proposal: Proposal, links: Links) -> Tensor:
    """[E, K]: of the coin of the node in each slot."""
    leaf = torch.zeros(proposal.tokens.shape, dtype=torch.float64)
    inner = torch.zeros(len(leaf), dtype=torch.float64)
    for rows, trials in zip(links.levels, verifier.trials(law, proposal, links), strict=True):
        leaf[rows] = trials.weight
        positive = trials.correction > 0
        inner[rows] = torch.where(positive, trials.correction / trials.correction_scale, 0.0)
    return torch.where(links.child_row >= 0, inner[links.child_row], leaf)


@dataclass(frozen=True)
class Step:
    tokens_per_step: float
    joint: Tensor  # [V] * length


def enumerate_trees(
    verifier: ResiSpecTreeVerifier,
    laws: Laws,
    plan: Planner,
    length: int,
    drawing: Drawing = Drawing.HEAD_AND_TAIL,
) -> Step:
    flat, weights = Flat(), []
    for weight, tree in realised(laws, plan):
        flat.roots.append(flat.add(tree))
        weights.append(weight)
    law, proposal = batch(flat.rows)
    proposal = replace(proposal, drawings=frozenset({drawing}))
    slots = proposal.tokens.shape[1]
    child_node = torch.tensor([nodes + [-1] * (slots - len(nodes)) for nodes in flat.child_nodes])
    expanded = torch.tensor(flat.expanded_row)
    topology = Topology(child_node, expanded, torch.tensor(flat.roots))
    links = Links(
        torch.where(child_node >= 0, expanded[child_node], -1),
        tuple(torch.tensor(rows) for rows in flat.levels),
        torch.tensor(flat.even),
    )
    chance = _chances(verifier, law, proposal, links)

    # The coins of one tree, side by side: [R, C] places in the flattened [E, K], -1 for none.
    coins: list[list[int]] = [[] for _ in flat.roots]
    for row, nodes in enumerate(flat.child_nodes):
        coins[flat.tree_of_row[row]] += [row * slots + slot for slot in range(len(nodes))]
    width = max(len(each) for each in coins)
    place = torch.tensor([each + [-1] * (width - len(each)) for each in coins])
    used = place >= 0
    of_coin = torch.where(used, chance.flatten()[place.clamp(min=0)], 0.0)

    vocab = law.weights.shape[1]
    prefix_ids = {prefix: index for index, prefix in enumerate(dict.fromkeys(flat.prefixes))}
    node_prefix = torch.tensor([prefix_ids[prefix] for prefix in flat.prefixes])
    mass = torch.zeros(len(prefix_ids), vocab, dtype=torch.float64)
    mean = 0.0
    start = torch.tensor(weights, dtype=torch.float64)
    p_of = torch.tensor([laws[prefix][0] for prefix in flat.prefixes], dtype=torch.float64)
    for shown in itertools.product([False, True], repeat=width):
        heads = torch.tensor(shown)
        probability = start * torch.where(heads, of_coin, 1 - of_coin).prod(dim=1)
        if not (probability > 0).any():
            continue
        uniforms = torch.full_like(chance, HIGH).flatten()
        uniforms[place[used]] = torch.where(heads, 0.0, HIGH).expand_as(place)[used].double()
        decision = verifier.decide_tree(law, proposal, links, uniforms.view_as(chance))
        end = walk(topology, decision, max_depth=len(flat.levels))
        weights_at_end = p_of[end.final]
        at_end = TargetLaw(weights_at_end)
        last = verifier.residual(at_end, *at_ends(proposal, decision, topology, end)).dense()
        total = last.sum(dim=1, keepdim=True)
        assert (total[probability > 1e-12] > 0).all()
        mass.index_add_(0, node_prefix[end.final], probability[:, None] * last / total.clamp(min=1e-300))
        mean += float((probability * (end.num_kept + 1)).sum())
    joint = torch.zeros((vocab,) * length, dtype=torch.float64)
    for prefix, index in prefix_ids.items():
        for token in range(vocab):
            spread(joint, laws, (*prefix, token), float(mass[index, token]))
    return Step(mean, joint)
