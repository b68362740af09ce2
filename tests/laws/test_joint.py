"""Joint decisions down the tree: laws of whole steps by enumeration of draws and coins."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from resispec.engine.drawing import Drawing
from resispec.engine.verifiers.block import BlockVerifier
from resispec.engine.verifiers.resispec_tree import ResiSpecTreeVerifier

from .enumerate import Node, batch, child_probabilities
from .forest import Laws, Prefix, exact_joint, tuples_of_draws
from .whole_trees import Plan, Planner, Step, enumerate_trees

TOLERANCE = 1e-9
TREE = ResiSpecTreeVerifier()


def random_laws(rng: np.random.Generator, vocab: int, depth: int) -> Laws:
    laws: Laws = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(vocab), repeat=length):
            p = rng.dirichlet([rng.choice([0.2, 1, 3])] * vocab)
            q = p * np.exp(rng.normal(0, rng.choice([0.3, 1, 3]), vocab))
            match rng.integers(0, 8):
                case 0:
                    p[rng.integers(vocab)] = 0
                case 1:
                    q[rng.integers(vocab)] = 0
                case 2:
                    q = p.copy()
                case 3:
                    p = np.eye(vocab)[rng.integers(vocab)]
                case 4:
                    q = rng.dirichlet([0.5] * vocab)
            laws[prefix] = ((p / p.sum()).tolist(), (q / q.sum()).tolist())
    return laws


def by_slots(**shapes: tuple[int, int] | tuple[int, int, bool]) -> Planner:
    """Shapes by the slots on the way: ``root``, ``s0``, ``s01``, ..; what is not named is a leaf."""

    def plan(slots: tuple[int, ...], _: Prefix) -> Plan | None:
        name = "s" + "".join(map(str, slots)) if slots else "root"
        return Plan(*shapes[name]) if name in shapes else None

    return plan


SHAPES: dict[str, tuple[Planner, int]] = {  # with the number of coins at most
    "chain": (by_slots(root=(0, 1), s0=(0, 1), s00=(0, 1)), 3),
    "two draws": (by_slots(root=(0, 2), s0=(0, 1), s1=(0, 1)), 4),
    "two and two": (by_slots(root=(0, 2), s0=(0, 2), s1=(0, 2)), 6),
    "head and draw": (by_slots(root=(1, 1), s0=(1, 1), s1=(0, 1)), 5),
    "two heads": (by_slots(root=(2, 0), s0=(0, 2), s1=(1, 0)), 5),
    "the deepest last": (by_slots(root=(0, 2), s1=(1, 1)), 4),
    "unequal": (by_slots(root=(0, 2, False), s0=(1, 1)), 4),
    "unequal below": (by_slots(root=(0, 1), s0=(0, 2, False), s00=(1, 0)), 4),
    "as even, which costs but does not bend": (by_slots(root=(0, 2), s0=(1, 1)), 4),
    "three draws": (by_slots(root=(0, 3), s2=(0, 1)), 4),
}


def check_law(step: Step, laws: Laws, length: int) -> None:
    assert float(step.joint.sum()) == pytest.approx(1, abs=TOLERANCE)
    assert (step.joint - exact_joint(laws, length)).abs().max() < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_over_every_draw_and_coin(shape: str) -> None:
    plan, _ = SHAPES[shape]
    rng = np.random.default_rng(40)
    for _ in range(12):
        laws = random_laws(rng, 2 if shape in ("two and two", "three draws") else 3, 3)
        check_law(enumerate_trees(TREE, laws, plan, 4), laws, 4)


def test_exact_where_shapes_follow_earlier_draws() -> None:
    def plan(slots: tuple[int, ...], prefix: Prefix) -> Plan | None:
        if not slots:
            return Plan(0, 2, even=False)
        return Plan(1, 1) if len(slots) == 1 and prefix[0] == 0 else None

    rng = np.random.default_rng(41)
    for _ in range(12):
        laws = random_laws(rng, 3, 3)
        check_law(enumerate_trees(TREE, laws, plan, 4), laws, 4)


def test_the_fall_back_where_slots_are_unequal() -> None:
    """A published case: with the thresholds of even nodes the joint rule keeps a third less."""
    laws: Laws = {(): ([0.99, 0.01], [1.0, 0.0])}
    for length in (1, 2, 3):
        for prefix in itertools.product(range(2), repeat=length):
            laws[prefix] = ([1.0, 0.0], [0.99, 0.01])
    found = {}
    for even in (True, False):
        plan = by_slots(root=(0, 1), s0=(0, 2, even), s00=(1, 0))
        step = enumerate_trees(TREE, laws, plan, 4)
        check_law(step, laws, 4)
        found[even] = step.tokens_per_step - 1  # kept candidates
    assert found[True] == pytest.approx(1.980, abs=5e-4)
    assert found[False] >= 2.960 - 5e-4


def per_node(laws: Laws, plan: Planner, slots: tuple[int, ...] = (), prefix: Prefix = ()) -> float:
    """Tokens per step of `resispec`, whose decisions at two nodes are independent."""
    wanted = plan(slots, prefix)
    if wanted is None:
        return 1.0
    node = Node.of(*laws[prefix], range(wanted.num_head), wanted.num_tail)
    tuples = list(tuples_of_draws(node))
    law, proposal = batch([(node, draws) for draws, _ in tuples])
    kept = child_probabilities(law, proposal)
    mean = 1.0
    for row, (draws, weight) in enumerate(tuples):
        for slot, token in enumerate([*node.head, *draws]):
            mean += weight * float(kept[row, slot]) * per_node(laws, plan, (*slots, slot), (*prefix, token))
    return mean


@pytest.mark.parametrize("shape", [name for name in SHAPES if not name.startswith("as even")])
def test_never_below_one_decision_a_node(shape: str) -> None:
    plan, _ = SHAPES[shape]
    rng = np.random.default_rng(42)
    gains = []
    for _ in range(6):
        laws = random_laws(rng, 2 if shape in ("two and two", "three draws") else 3, 3)
        step = enumerate_trees(TREE, laws, plan, 4)
        gains.append(step.tokens_per_step - per_node(laws, plan))
    assert min(gains) > -TOLERANCE
    if shape in ("chain", "two draws"):
        assert max(gains) > 1e-3


def block_tokens_per_step(laws: Laws, depth: int) -> float:
    """Sun et al., equation by equation, over every drawn chain."""

    def below(prefix: Prefix, token: int, w: float) -> tuple[float, float]:
        return tree((*prefix, token), min(1.0, w * laws[prefix][0][token] / laws[prefix][1][token]))

    def tree(prefix: Prefix, w: float) -> tuple[float, float]:
        """Expected length kept at this prefix or longer, and the probability that none is kept."""
        if len(prefix) == depth:
            return w * depth, 1 - w
        p, q = laws[prefix]
        surplus = sum(max(0.0, w * a - b) for a, b in zip(p, q, strict=True))
        h = surplus / (surplus + 1 - w) if surplus > 0 else 0.0
        parts = [(b, *below(prefix, token, w)) for token, b in enumerate(q) if b > 0]
        length = sum(b * kept for b, kept, _ in parts)
        fails = sum(b * failed for b, _, failed in parts)
        if not prefix:
            return length, 0.0
        return length + fails * h * len(prefix), fails * (1 - h)

    return 1 + tree((), 1.0)[0]


def test_a_chain_is_block_verification() -> None:
    rng = np.random.default_rng(43)
    plan, _ = SHAPES["chain"]
    for _ in range(10):
        laws = random_laws(rng, 3, 3)
        step = enumerate_trees(BlockVerifier(), laws, plan, 4, Drawing.CHAIN)
        check_law(step, laws, 4)
        assert step.tokens_per_step == pytest.approx(block_tokens_per_step(laws, 3), abs=1e-12)


def test_the_harness_sees_a_shared_node() -> None:
    """Control: decisions of another rule's residual must show."""
    rng = np.random.default_rng(44)
    plan, _ = SHAPES["two draws"]
    laws = random_laws(rng, 3, 3)

    class Forgetful(ResiSpecTreeVerifier):
        def residual(self, law, proposal, decision):
            decision.threshold.mul_(0.5)
            return super().residual(law, proposal, decision)

    step = enumerate_trees(Forgetful(), laws, plan, 4)
    assert (step.joint - exact_joint(laws, 4)).abs().max() > 1e-3


def test_probability_zero_is_never_kept() -> None:
    """A chain whose first token the target excludes, with every coin at its lowest."""
    laws: Laws = {(): ([0.0, 1.0], [1.0, 0.0])}
    for length in (1, 2, 3):
        for prefix in itertools.product(range(2), repeat=length):
            laws[prefix] = ([0.5, 0.5], [0.5, 0.5])
    step = enumerate_trees(TREE, laws, SHAPES["chain"][0], 4)
    assert step.tokens_per_step == 1
    assert torch.equal(step.joint[0], torch.zeros_like(step.joint[0]))
