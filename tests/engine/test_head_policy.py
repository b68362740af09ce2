"""How many children are chosen: the definition, what it may depend on, and that it pays."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from resispec.engine.audit.laws import Positions
from resispec.engine.audit.node import node_law
from resispec.engine.audit.proposals import source
from resispec.engine.audit.read import Case
from resispec.engine.audit.settings import PairSettings
from resispec.engine.audit.splits import SplitRow, SplitTally
from resispec.engine.audit.splits_report import print_splits, splits_json
from resispec.engine.proposers.children import Truncation, rank
from resispec.engine.proposers.head_policy import num_chosen, split_children
from resispec.engine.tree import Level
from resispec.engine.verifiers.resispec import ResiSpecVerifier

ADAPTIVE = Level(1, 0, 4, adaptive=True)


def by_definition(law: list[float], children: int) -> int:
    chosen = 0
    while chosen < children - 1:
        left = sum(law[chosen:])
        share = law[chosen] / left if left > 0 else 1.0
        if 1 - (1 - share) ** (children - chosen) < 0.5:
            break
        chosen += 1
    return chosen


def test_against_the_definition() -> None:
    rng = np.random.default_rng(70)
    seen = set()
    for children in (1, 2, 3, 4, 8):
        laws = np.sort(rng.random((60, 20)) ** rng.integers(1, 12, (60, 1)), axis=1)[:, ::-1].copy()
        laws[::7, 3:] = 0  # less tokens than children
        found = num_chosen(torch.from_numpy(laws), children).tolist()
        assert found == [by_definition(law, children) for law in laws.tolist()]
        seen |= set(found)
    assert seen == set(range(8)), "from none to all but one"


def test_a_flat_law_is_drawn_from_and_a_sharp_one_chosen_from() -> None:
    flat, sharp = torch.zeros(1, 30), torch.arange(30, 0, -1)[None] * 3.0
    ones = torch.ones(1)
    assert [part.tolist() for part in split_children(ADAPTIVE, rank(flat, ones, 30), 30)] == [[0], [4]]
    assert [part.tolist() for part in split_children(ADAPTIVE, rank(sharp, ones, 30), 30)] == [[3], [1]]
    fixed = Level(1, 2, 1)
    assert [part.tolist() for part in split_children(fixed, rank(flat, ones, 30), 30)] == [[2], [1]]


def test_company_does_not_matter() -> None:
    """Spare tokens are ranked for the sake of other requests."""
    logits = torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
    heat = torch.full((200,), 0.9)
    alone = split_children(ADAPTIVE, rank(logits, heat, 12), 12)
    beside = split_children(ADAPTIVE, rank(logits, heat, 12, num_spare=5), 12)
    assert torch.equal(alone[0], beside[0])
    assert len(alone[0].unique()) > 2
    known = torch.tensor([[3, 7]]).expand(200, -1)
    few = rank(logits, heat, 12, num_spare=2).without(known)
    many = rank(logits, heat, 12, num_spare=9).without(known)
    assert torch.equal(split_children(ADAPTIVE, few, 12)[0], split_children(ADAPTIVE, many, 12)[0])


def test_truncation_leaves_nothing_to_draw() -> None:
    """What the request's own truncation excludes is not drawn, so the slots go to chosen tokens."""
    logits = torch.arange(9.0).flip(0)[None]
    ranked = rank(logits, torch.ones(1), 9, truncation=Truncation(top_k=torch.tensor([2])))
    assert split_children(ADAPTIVE, ranked, 9)[0].tolist() == [3]


def model_like(count: int, noise: float) -> Positions:
    """A target of sharp and flat laws, and a draft that is it with noise."""
    generator = torch.Generator().manual_seed(4)
    scale = 0.5 + 2.5 * torch.rand(count, 1, generator=generator)
    target = torch.randn(count, 400, generator=generator) * scale
    return Positions(target, target + noise * torch.randn(count, 400, generator=generator), None)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_as_good_as_the_best_fixed_split(temperature: float) -> None:
    """In hindsight, and with any number of children; better than one draw where there are several."""
    tally = SplitTally((2, 4, 8), temperature)
    tally.add(model_like(300, 1.0))
    rows = {(row.children, row.head): row for row in tally.rows()}
    for children in (2, 4, 8):
        policy = rows[children, None]
        assert policy.over_best_fixed > -0.004
        assert policy.acceptance > rows[children, children].acceptance
    assert rows[8, None].acceptance > rows[8, 7].acceptance + 0.003
    assert 0 < rows[8, None].mean_head < 7


def test_splits_against_enumeration() -> None:
    generator = torch.Generator().manual_seed(5)
    target, draft = torch.randn(3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    tally = SplitTally((3,), 0.8)
    tally.add(Positions(target, draft, None))
    for row in tally.rows():
        expected = []
        for wanted, drafted in zip(target, draft, strict=True):
            p, q = ((x.double() / 0.8).softmax(0) for x in (wanted, drafted))
            best = drafted.argsort(descending=True)
            head = by_definition(q[best].tolist(), 3) if row.head is None else row.head
            case = Case(tuple(p.tolist()), tuple(q.tolist()), tuple(best[:head].tolist()), 3 - head)
            verifier = ResiSpecVerifier()
            expected.append(node_law(verifier, source(case, verifier.drawing)).acceptance)
        assert row.acceptance == pytest.approx(np.mean(expected), abs=1e-6)


def test_table_and_json() -> None:
    rows = [
        SplitRow(2, 1, 1.0, 0.5, 0.01, 0.0, 0.0),
        SplitRow(2, None, 0.6, 0.52, 0.01, 0.02, 0.003),
    ]
    console = Console(record=True, width=120)
    print_splits(PairSettings(), rows, console)
    shown = console.export_text()
    assert "policy: 0.60" in shown
    assert "+0.0200 ± 0.0030" in shown
    assert json.loads(json.dumps(splits_json(PairSettings(), rows)))["splits"]["rows"][1]["head"] is None
