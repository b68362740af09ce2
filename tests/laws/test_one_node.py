"""The law of one node's token, against the target's, by enumeration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from resispec.engine.verifiers.base import Proposal, TargetLaw
from resispec.engine.verifiers.masses import split
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.target import TargetVerifier
from resispec.engine.verifiers.thresholds import solve_thresholds

from .enumerate import RESISPEC, Node, acceptance, batch, child_probabilities, output_law, output_laws_by_test
from .random_nodes import random_node, steep_node

CASES = json.loads((Path(__file__).parent / "data" / "verification.json").read_text())
TOLERANCE = 1e-9
pytestmark = pytest.mark.usefixtures("either_way")


@pytest.mark.parametrize("index", range(len(CASES)))
def test_agrees_with_an_independent_implementation(index: int) -> None:
    case = CASES[index]
    node = Node.of(case["p"], case["q"], case["head"], case["tail_draws"])
    support = node.support or [0]
    law, proposal = batch([(node, [token] * node.num_tail) for token in support])
    masses = split(law, proposal)
    solved = solve_thresholds(
        masses.tail,
        proposal.tail_probs,
        masses.head.sum(dim=1),
        masses.outside,
        proposal.num_tail,
        node.num_tail,
    )
    expected = case["resispec"]
    kept = 1 - float(solved.remainder[0]) + sum(case["p"][token] for token in node.head)
    assert kept == pytest.approx(expected["acceptance"], abs=TOLERANCE)
    refused_by_tail = kept < 1 - TOLERANCE
    if refused_by_tail and node.num_tail == case["tail_draws"]:  # else one choice of many
        assert solved.t[0].tolist() == pytest.approx(expected["thresholds"], abs=TOLERANCE)
        accept = RESISPEC.trials(law, proposal).accept_probability()
        for test in range(node.num_tail):
            for row, token in enumerate(support):
                value = expected["accept_probability"][test][token]
                # A test that is hardly ever reached has a probability of rounding errors.
                if solved.reach[0, test] > 1e-6:
                    assert float(accept[row, len(node.head) + test]) == pytest.approx(value, abs=1e-8)
    assert (output_laws_by_test([node])[0] - node.p).abs().max() < TOLERANCE


def probed_probabilities(law: TargetLaw, proposal: Proposal) -> Tensor:
    """As `child_probabilities`, from nothing but what `decide` does at one uniform and at another."""
    rows, slots = proposal.tokens.shape
    accept = torch.zeros(rows, slots, dtype=torch.float64)
    for slot in range(slots):
        in_head = slot < proposal.num_head
        driver = torch.where(in_head, 0, slot)[:, None]  # the uniform that decides about this slot
        low, high = torch.zeros(rows, 1, dtype=torch.float64), torch.ones(rows, 1, dtype=torch.float64)
        for _ in range(53):
            middle = (low + high) / 2
            others = torch.full((rows, slots), 1 - 2.0**-53, dtype=torch.float64)
            child = RESISPEC.decide(law, proposal, others.scatter_(1, driver, middle)).child
            kept = torch.where(in_head, (child >= 0) & (child <= slot), child == slot)[:, None]
            low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
        accept[:, slot] = high[:, 0]
    accept[accept < 1e-15] = 0
    slot_index = torch.arange(slots)
    in_head = slot_index < proposal.num_head[:, None]
    tail = torch.where(in_head, 0.0, accept)
    refused = torch.nn.functional.pad((1 - tail).cumprod(dim=1), (1, 0), value=1.0)
    head = torch.where(in_head, accept, 0.0)
    head = (head - torch.nn.functional.pad(head, (1, 0))[:, :-1]).clamp(min=0)
    kept = torch.where(in_head, head * refused[:, -1:], tail * refused[:, :-1])
    return torch.cat([kept, 1 - kept.sum(dim=1, keepdim=True)], dim=1)


def test_exact_by_what_is_decided() -> None:
    rng = np.random.default_rng(23)
    worst = 0.0
    for _ in range(80):
        node = random_node(rng, max_vocab=4, max_tail=3)
        worst = max(worst, float((output_law(node, probed_probabilities) - node.p).abs().max()))
    assert worst < TOLERANCE


def _remainder_by_bisection(node: Node) -> float:
    """W at the largest feasible ``t_1``: the equations as written, 100 halvings, no prefix sums."""
    p, q = node.p.numpy(), node.q.numpy()
    tail = q > 0
    outside = p[~tail].sum()

    def remainder(t: float) -> float:
        return float(outside + np.maximum(p[tail] - q[tail] * t, 0).sum())

    def last(first: float) -> float:
        t = first - 1
        for _ in range(node.num_tail - 1):
            t = np.maximum(q[tail] * t - p[tail], 0).sum() - remainder(first)
        return t

    low, high = 1.0, float(node.num_tail)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if last(middle) <= 0 else (low, middle)
    return remainder(low)


def test_accepts_as_much_as_a_slow_solver() -> None:
    rng = np.random.default_rng(24)
    nodes = [steep_node(rng) for _ in range(300)] + [random_node(rng, 300) for _ in range(200)]
    nodes = [node for node in nodes if node.num_tail >= 2]
    assert len(nodes) > 350
    law, proposal = batch([(node, [node.support[0]] * node.num_tail) for node in nodes])
    masses = split(law, proposal)
    solved = solve_thresholds(
        masses.tail, proposal.tail_probs, masses.head.sum(dim=1), masses.outside, proposal.num_tail, 8
    )
    for node, remainder in zip(nodes, solved.remainder.tolist(), strict=True):
        assert remainder == pytest.approx(_remainder_by_bisection(node), abs=1e-12)


def test_exact_over_many_nodes() -> None:
    rng = np.random.default_rng(20)
    nodes = [random_node(rng) for _ in range(2000)] + [steep_node(rng) for _ in range(400)]
    assert sum(node.num_tail >= 2 for node in nodes) > 1000
    worst = 0.0
    for start in range(0, len(nodes), 150):
        part = nodes[start : start + 150]
        for node, law in zip(part, output_laws_by_test(part, scale=3.7e4), strict=True):
            worst = max(worst, float((law - node.p).abs().max()))
    assert worst < TOLERANCE


def test_exact_over_every_tuple_of_draws() -> None:
    rng = np.random.default_rng(21)
    worst = 0.0
    for _ in range(150):
        node = random_node(rng, max_vocab=4, max_tail=3)
        worst = max(worst, float((output_law(node) - node.p).abs().max()))
    assert worst < TOLERANCE


def test_decide_accepts_with_the_stated_probability() -> None:
    """`decide` on uniforms just below and just above the stated probability of each slot alone."""
    rng = np.random.default_rng(22)
    verifier = ResiSpecVerifier()
    checked = 0
    for _ in range(100):
        node = random_node(rng, max_vocab=12)
        draws = rng.choice(node.support, size=node.num_tail).tolist() if node.num_tail else []
        heads, slots = len(node.head), len(node.head) + node.num_tail
        if slots == 0:
            continue
        law, proposal = batch([(node, draws)])
        accept = RESISPEC.trials(law, proposal).accept_probability()[0]
        ends = torch.cat([accept[:heads].cumsum(0), accept[heads:]])
        if (accept[heads:] >= 1 - 1e-12).any():
            continue  # what comes after a sure test is never reached
        for slot in range(slots):
            driver = 0 if slot < heads else slot  # the uniform that decides about this slot
            below = torch.full((1, slots), 1 - 2.0**-53, dtype=torch.float64)
            above = below.clone()
            below[0, driver] = ends[slot] * (1 - 1e-12)
            above[0, driver] = min(float(ends[slot]) * (1 + 1e-12), 1 - 2.0**-53)
            if accept[slot] > 1e-9:
                assert int(verifier.decide(law, proposal, below).child) == slot
                checked += 1
            if ends[slot] < 1 - 1e-9:
                assert int(verifier.decide(law, proposal, above).child) != slot
                checked += 1
    assert checked > 200


def test_special_cases() -> None:
    p, q = [0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.1, 0.4]
    one = Node.of(p, q, [], 1)  # ordinary speculative sampling
    law, proposal = batch([(one, [token]) for token in range(4)])
    ratio = (one.p / one.q).clamp(max=1)
    assert torch.equal(RESISPEC.trials(law, proposal).accept_probability()[:, 0], ratio)
    assert acceptance(one) == pytest.approx(float(torch.minimum(one.p, one.q).sum()), abs=1e-15)

    none = Node.of(p, q, [3, 1], 0)  # draw from the target, keep it if it is a child
    assert acceptance(none) == pytest.approx(0.3, abs=1e-15)

    greedy = Node.of([0, 1, 0, 0], q, [2, 1], 0)
    law, proposal = batch([(greedy, [])])
    for u in (0.0, 0.5, 1 - 2.0**-53):
        uniforms = torch.full((1, 2), u, dtype=torch.float64)
        assert int(ResiSpecVerifier().decide(law, proposal, uniforms).child) == 1
    childless = Node.of([0, 1, 0, 0], q, [0], 0)
    law, proposal = batch([(childless, [])])
    decided = ResiSpecVerifier().decide(law, proposal, torch.zeros(1, 1, dtype=torch.float64))
    assert int(decided.child) == -1
    assert ResiSpecVerifier().residual(law, proposal, decided).dense()[0].tolist() == [0, 1, 0, 0]


def test_probability_zero_is_never_accepted() -> None:
    """Draws the target excludes, with every uniform at its lowest."""
    node = Node.of([0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [], 3)
    law, proposal = batch([(node, [0, 1, 0])])
    uniforms = torch.zeros(1, 3, dtype=torch.float64)
    for verifier in (ResiSpecVerifier(), TargetVerifier()):
        decided = verifier.decide(law, proposal, uniforms[:, : verifier.num_uniforms(3)])
        assert int(decided.child) == -1
        residual = verifier.residual(law, proposal, decided).dense()
        assert torch.equal(residual, law.weights)


def _target_probabilities(law: TargetLaw, proposal: Proposal) -> Tensor:
    """Child probabilities of the target verifier, read off `decide` by bisection of its one uniform."""
    verifier = TargetVerifier()
    rows, slots = proposal.tokens.shape
    ends = []
    for slot in range(slots):
        low = torch.zeros(rows, 1, dtype=torch.float64)
        high = torch.ones(rows, 1, dtype=torch.float64)
        for _ in range(56):
            middle = (low + high) / 2
            child = verifier.decide(law, proposal, middle).child[:, None]
            inside = (child >= 0) & (child <= slot)
            low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
        ends.append(high)
    edges = torch.cat([torch.zeros(rows, 1, dtype=torch.float64), *ends], dim=1)
    return torch.cat([edges.diff(dim=1), 1 - edges[:, -1:]], dim=1)


def test_target_verifier_is_exact_for_any_proposal() -> None:
    rng = np.random.default_rng(23)
    verifier = TargetVerifier()
    for _ in range(40):
        node = random_node(rng, max_vocab=5, max_tail=3)
        if node.num_tail + len(node.head) == 0:
            continue
        draws = rng.choice(node.support, size=node.num_tail).tolist()  # any law: it does not matter
        law, proposal = batch([(node, draws)])
        kept = _target_probabilities(law, proposal)[0]
        decided = verifier.decide(law, proposal, torch.full((1, 1), 1 - 2.0**-53, dtype=torch.float64))
        residual = verifier.residual(law, proposal, decided).dense()[0]
        output = residual / residual.sum() * kept[-1] if residual.sum() > 0 else torch.zeros_like(node.p)
        output = output.index_add(0, proposal.tokens[0].clamp(min=0), kept[:-1])
        assert (output - node.p).abs().max() < TOLERANCE


def test_never_above_the_optimal_transport_ceiling() -> None:
    checked = 0
    for case in CASES:
        node = Node.of(case["p"], case["q"], case["head"], case["tail_draws"])
        if node.num_tail == 0 or len(node.support) ** node.num_tail > 700:
            continue
        assert acceptance(node) <= case["resispec"]["ceiling"] + TOLERANCE
        checked += 1
    assert checked > 30


def _tests_in_order_of_own_probability(law: TargetLaw, proposal: Proposal) -> Tensor:
    """A broken rule: the drawn tail sorted by its own probability before it is tested."""
    slots = proposal.tokens.shape[1]
    q = proposal.tail_probs.gather(1, proposal.tail_index)
    order = q.argsort(dim=1, descending=True, stable=True)
    resorted = Proposal(
        proposal.tokens.gather(1, order),
        proposal.num_head,
        proposal.num_tail,
        proposal.tail_ids,
        proposal.tail_probs,
        proposal.tail_index.gather(1, order),
    )
    kept = child_probabilities(law, resorted)
    back = torch.cat([order, torch.full((order.shape[0], 1), slots)], dim=1)
    return torch.empty_like(kept).scatter_(1, back, kept)


def test_the_harness_sees_a_wrong_order() -> None:
    """Control: no head, two draws, the likelier tested first. The law must come out wrong."""
    node = Node.of([0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [], 2)
    assert (output_law(node) - node.p).abs().max() < TOLERANCE
    wrong = output_law(node, _tests_in_order_of_own_probability)
    assert float(wrong.sum()) == pytest.approx(1)
    assert (wrong - node.p).abs().max() > 1e-2


def _printed_rule_law(p: Tensor, q: Tensor, count: int) -> Tensor:
    """Output law of Algorithm 1 of arXiv 2608.24411 as printed, all draws enumerated."""

    def go(remaining: Tensor, left: int) -> Tensor:
        if left == 0:
            return remaining
        output = torch.zeros_like(p)
        for x in range(p.shape[0]):
            accept = min(1.0, float(remaining[x] / q[x]))
            output[x] += q[x] * accept
            if accept < 1:
                budget = q[x] - remaining[x]
                reserved = torch.minimum(budget * q, remaining)
                reserved[x] = 0
                room = remaining - reserved
                room[x] = 0
                reserved = reserved + (budget - reserved.sum()) * room / room.sum()
                output += q[x] * (1 - accept) * go(reserved / budget, left - 1)
        return output

    return go(p, count)


def test_the_printed_rule_is_biased_and_ours_is_not() -> None:
    """Control: the published example of the bias, to its three printed digits."""
    p, q = [0.4, 0.3, 0.3], [0.6, 0.3, 0.1]
    printed = [_printed_rule_law(torch.tensor(p).double(), torch.tensor(q).double(), n) for n in (1, 3)]
    assert printed[0].tolist() == pytest.approx([0.400, 0.415, 0.185], abs=5e-4)
    assert printed[1].tolist() == pytest.approx([0.400, 0.442, 0.158], abs=5e-4)
    for count in (1, 3):
        node = Node.of(p, q, [], count)
        assert (output_law(node) - node.p).abs().max() < TOLERANCE
