"""The rules beside the default one, by enumeration: laws, an independent implementation, controls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resispec.engine.drawing import Drawing
from resispec.engine.verifiers.fit import MisfitError
from resispec.engine.verifiers.in_turn import InTurnRule
from resispec.engine.verifiers.resispec import ResiSpecVerifier
from resispec.engine.verifiers.resispec_paper import ResiSpecPaperVerifier
from resispec.engine.verifiers.specinfer import SpecInferVerifier
from resispec.engine.verifiers.spectr import SpecTrVerifier
from resispec.engine.verifiers.table import VERIFIERS
from resispec.engine.verifiers.target import TargetVerifier
from resispec.engine.verifiers.trials import NodeRule
from resispec.engine.verifiers.without_replacement import WithoutReplacementVerifier

from .enumerate import Node, batch, output_laws_by_test
from .families import enumerate_nodes, number_of_tuples, proposed
from .random_nodes import random_node

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "verification.json").read_text())
FROM_Q = [index for index, case in enumerate(CASES) if "candidates_from_q_ignoring_head" in case]
PAPER = [index for index in FROM_Q if "resispec_paper" in CASES[index]]
TOLERANCE = 1e-9
MOST_TUPLES = 800

RULES: list[tuple[NodeRule, Drawing]] = [
    (SpecInferVerifier(), Drawing.INDEPENDENT),
    (WithoutReplacementVerifier(), Drawing.WITHOUT_REPLACEMENT),
    (SpecTrVerifier(), Drawing.INDEPENDENT),
]
NAMES = [rule.name for rule, _ in RULES]


def headless(node: Node, drawing: Drawing) -> Node:
    """Without its head, and with as many draws as its support and the enumeration bear."""
    node = replace(node, head=())
    if drawing is Drawing.WITHOUT_REPLACEMENT:
        node = replace(node, num_tail=min(node.num_tail, len(node.support)))
    while number_of_tuples(node, drawing) > MOST_TUPLES:
        node = replace(node, num_tail=node.num_tail - 1)
    return node


def case_node(index: int, drawing: Drawing) -> Node:
    case = CASES[index]
    node = Node.of(case["p"], case["q"], (), case["candidates_from_q_ignoring_head"]["count"])
    if drawing is Drawing.WITHOUT_REPLACEMENT:
        return replace(node, num_tail=min(node.num_tail, len(node.support)))
    return node


@pytest.mark.parametrize("index", FROM_Q)
def test_agrees_with_an_independent_implementation(index: int) -> None:
    expected = CASES[index]["candidates_from_q_ignoring_head"]
    for rule, drawing in RULES:
        node = case_node(index, drawing)
        [found] = enumerate_nodes(rule, [node], drawing)
        assert found.acceptance == pytest.approx(expected[rule.name.replace("-", "_")], abs=TOLERANCE)
        assert (found.law - node.p).abs().max() < TOLERANCE


@pytest.mark.parametrize("index", PAPER)
def test_the_printed_rule_agrees_with_an_independent_implementation(index: int) -> None:
    expected = CASES[index]["resispec_paper"]
    [found] = enumerate_nodes(
        ResiSpecPaperVerifier(), [case_node(index, Drawing.INDEPENDENT)], Drawing.INDEPENDENT
    )
    assert found.acceptance == pytest.approx(expected["acceptance"], abs=TOLERANCE)
    assert found.law.tolist() == pytest.approx(expected["law"], abs=TOLERANCE)


def worst_error(rule: NodeRule, nodes: list[Node], drawing: Drawing) -> float:
    worst = 0.0
    for start in range(0, len(nodes), 60):
        part = nodes[start : start + 60]
        for node, found in zip(part, enumerate_nodes(rule, part, drawing), strict=True):
            worst = max(worst, float((found.law - node.p).abs().max()))
    return worst


@pytest.mark.parametrize(("rule", "drawing"), RULES, ids=NAMES)
def test_exact_over_every_tuple_of_draws(rule: NodeRule, drawing: Drawing) -> None:
    rng = np.random.default_rng(31)
    few = [headless(random_node(rng, max_vocab=5), drawing) for _ in range(250)]
    many = [headless(random_node(rng, max_tail=2), drawing) for _ in range(60)]
    assert max(node.num_tail for node in few) == 6 or drawing is Drawing.WITHOUT_REPLACEMENT
    assert max(node.p.shape[0] for node in many) > 50
    assert worst_error(rule, few + many, drawing) < TOLERANCE


@pytest.mark.parametrize("rule", [SpecInferVerifier(), SpecTrVerifier()], ids=lambda rule: rule.name)
def test_exact_over_many_nodes_with_heads(rule: NodeRule) -> None:
    """These rules' tests do not look at other draws, so rows of one token each show all there is."""
    rng = np.random.default_rng(32)
    nodes = [random_node(rng) for _ in range(2000)]
    assert sum(node.num_tail >= 2 and len(node.head) > 0 for node in nodes) > 500
    worst = 0.0
    for start in range(0, len(nodes), 250):
        part = nodes[start : start + 250]
        for node, law in zip(part, output_laws_by_test(part, scale=0.3, rule=rule), strict=True):
            worst = max(worst, float((law - node.p).abs().max()))
    assert worst < TOLERANCE


@pytest.mark.slow
def test_without_replacement_is_exact_over_many_nodes() -> None:
    rng = np.random.default_rng(33)
    rule, drawing = WithoutReplacementVerifier(), Drawing.WITHOUT_REPLACEMENT
    sizes = rng.choice([6, 9, 60], size=2000, p=[0.6, 0.3, 0.1])
    nodes = [headless(random_node(rng, max_vocab=int(size)), drawing) for size in sizes]
    assert sum(node.num_tail >= 3 for node in nodes) > 300
    assert worst_error(rule, nodes, drawing) < TOLERANCE


def test_the_printed_rule_is_not_exact() -> None:
    """The very same check, failed by far."""
    rng = np.random.default_rng(31)
    nodes = [headless(random_node(rng, max_vocab=5), Drawing.INDEPENDENT) for _ in range(100)]
    assert worst_error(ResiSpecPaperVerifier(), nodes, Drawing.INDEPENDENT) > 0.05
    assert not ResiSpecPaperVerifier.exact
    assert all(rule.exact for rule, _ in RULES)


def test_the_flaw_of_the_printed_rule_in_three_tokens() -> None:
    p, q = [0.4, 0.3, 0.3], [0.6, 0.3, 0.1]
    nodes = [Node.of(p, q, (), count) for count in (1, 3)]
    one, three = enumerate_nodes(ResiSpecPaperVerifier(), nodes, Drawing.INDEPENDENT)
    assert one.law.tolist() == pytest.approx([0.400, 0.415, 0.185], abs=5e-4)
    assert three.law.tolist() == pytest.approx([0.400, 0.442, 0.158], abs=5e-4)


def test_the_default_rule_keeps_at_least_as_much_of_the_same_draws() -> None:
    rng = np.random.default_rng(34)
    nodes = [headless(random_node(rng, max_vocab=6, max_tail=4), Drawing.INDEPENDENT) for _ in range(300)]
    ours = enumerate_nodes(ResiSpecVerifier(), nodes, Drawing.INDEPENDENT)
    gained = 0
    for rule in (SpecInferVerifier(), SpecTrVerifier()):
        theirs = enumerate_nodes(rule, nodes, Drawing.INDEPENDENT)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.acceptance >= other.acceptance - TOLERANCE
            gained += mine.acceptance > other.acceptance + 1e-3
    assert gained > 30


def test_without_replacement_needs_its_own_draws() -> None:
    """Control: the same rule without taking refused tokens out of ``q`` is biased on these draws."""
    node = Node.of([0.1, 0.45, 0.45], [0.6, 0.3, 0.1], (), 2)
    [found] = enumerate_nodes(SpecInferAnyDraws(), [node], Drawing.WITHOUT_REPLACEMENT)
    assert (found.law - node.p).abs().max() > 1e-2


class SpecInferAnyDraws(SpecInferVerifier):
    fits = frozenset(Drawing)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_all_are_ordinary_speculative_sampling_for_one_draw(name: str) -> None:
    rule = VERIFIERS[name]
    if not isinstance(rule, NodeRule) or isinstance(rule, TargetVerifier):
        return  # joint decisions have tests of their own; `target` keeps whatever is drawn
    node = Node.of([0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.1, 0.4], (), 1)
    law, proposal, _ = proposed([node], Drawing.CHAIN)
    accept = rule.trials(law, proposal).accept_probability()[:, 0]
    assert accept.tolist() == pytest.approx((node.p / node.q).clamp(max=1).tolist(), abs=1e-15)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_probability_zero_is_never_kept(name: str) -> None:
    """Draws that the target excludes, with every uniform at its lowest."""
    rule = VERIFIERS[name]
    if not isinstance(rule, NodeRule):
        return
    distinct = rule.drawing is Drawing.WITHOUT_REPLACEMENT
    node = Node.of([0.0, 0.0, 1.0], [0.5, 0.5, 0.0], (), 2 if distinct else 3)
    law, proposal = batch([(node, [0, 1] if distinct else [0, 1, 0])])
    proposal = replace(proposal, drawings=frozenset({rule.drawing}))
    uniforms = torch.zeros(1, rule.num_uniforms(node.num_tail), dtype=torch.float64)
    decided = rule.decide(law, proposal, uniforms)
    assert int(decided.child) == -1
    residual = rule.residual(law, proposal, decided).dense()
    torch.testing.assert_close(residual / residual.sum(), law.weights, rtol=0, atol=1e-15)


def test_equal_laws_keep_the_first_draw() -> None:
    node = Node.of([0.25, 0.75], [0.25, 0.75], (), 3)
    for rule in (SpecInferVerifier(), SpecTrVerifier(), ResiSpecPaperVerifier()):
        [found] = enumerate_nodes(rule, [node], Drawing.INDEPENDENT)
        assert found.acceptance == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("rule", "drawing", "fitting"),
    [
        (SpecInferVerifier(), Drawing.WITHOUT_REPLACEMENT, "target, without-replacement"),
        (WithoutReplacementVerifier(), Drawing.INDEPENDENT, "resispec, .*spectr"),
        (ResiSpecPaperVerifier(), Drawing.HEAD_AND_TAIL, "resispec, .*specinfer"),
        (ResiSpecVerifier(), Drawing.WITHOUT_REPLACEMENT, "target, without-replacement"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_misfit_is_refused_and_says_what_fits(rule: NodeRule, drawing: Drawing, fitting: str) -> None:
    law, proposal = batch([(Node.of([0.5, 0.5], [0.5, 0.5], (), 2), [0, 1])])
    proposal = replace(proposal, drawings=frozenset({drawing}))
    uniforms = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(MisfitError, match=f"{rule.name}.*{drawing.value}; these have: {fitting}"):
        rule.decide(law, proposal, uniforms)


def test_every_rule_in_turn_is_in_the_table() -> None:
    listed = {type(rule) for rule in VERIFIERS.values()}
    assert set(InTurnRule.__subclasses__()) <= listed
