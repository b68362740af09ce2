"""Known candidates in the controller's eyes: what they must be worth, and what they leave to the draft."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from resispec.engine.budget.base import Choice, Off, View
from resispec.engine.budget.controller import Controller, ControllerSettings
from resispec.engine.budget.costs import ReferenceCosts, reference_costs
from resispec.engine.drawing import Drawing
from resispec.engine.known_tree import NOTHING_KNOWN, KnownTree
from resispec.engine.request import SamplingParams, SpeculationMode

SURE = KnownTree((5, 6, 7), (0, 1, 2), ("ngram",) * 3, (0.97,) * 3)
VAGUE = KnownTree((5,), (0,), ("ngram",), (0.2,))


def controller(probes: float = 0.0, step_nodes: int = 8) -> Controller:
    costs = reference_costs("cpu")
    return Controller(ControllerSettings(step_nodes, probes), costs, costs)


def view(given: Controller, known: KnownTree = NOTHING_KNOWN, **changes: object) -> View:
    base = View(
        history=given.history("resispec", SamplingParams(temperature=0.0)),
        mode=SpeculationMode.AUTO,
        is_free=True,
        max_nodes=12,
        max_depth=3,
        off=None,
        length=100,
        behind=1,
        drawing=Drawing.HEAD_AND_TAIL,
        shares_nodes=True,
        known=known,
    )
    return replace(base, **changes)


def test_expectations_of_a_trie() -> None:
    assert SURE.expected_tokens == pytest.approx(0.97 + 0.97**2 + 0.97**3)
    two = KnownTree((5, 6, 7), (0, 0, 1), ("a",) * 3, (0.5, 0.3, 0.4))
    assert two.first_chance == pytest.approx(0.8)
    assert two.expected_tokens == pytest.approx(0.5 + 0.3 + 0.2)
    assert NOTHING_KNOWN.first_chance == NOTHING_KNOWN.expected_tokens == 0


def test_a_candidate_costs_more_where_many_share_a_step() -> None:
    given = controller()

    def least(batch: int, mode: SpeculationMode = SpeculationMode.AUTO, *, is_free: bool = True) -> float:
        return given.known_limit(mode, batch, 100, is_free=is_free, drafts=True).least_chance

    assert 0.02 < least(1) < least(4) < least(16) < 1
    assert least(16, is_free=False) == least(1), "a seeded request's does not depend on its company"
    assert least(1, SpeculationMode.FIXED) == least(16, SpeculationMode.FIXED)


def test_the_fixed_mode_shares_candidates_out() -> None:
    given = controller(step_nodes=8)
    fixed = SpeculationMode.FIXED
    assert given.known_limit(fixed, 4, 100, is_free=True, drafts=True).max_nodes == 2
    assert given.known_limit(fixed, 4, 100, is_free=False, drafts=True).max_nodes is None
    assert given.known_limit(SpeculationMode.OFF, 1, 100, is_free=True, drafts=True).max_nodes == 0
    (choice,) = given.plan([view(given, SURE, mode=fixed)], 0)
    assert choice.budget is not None
    assert choice.budget.max_nodes == 5, "of 8, three are known"
    full = [view(given, SURE, mode=fixed) for _ in range(3)]
    assert given.plan(full, 0) == [Choice(None, Off.LOAD)] * 3


def test_sure_candidates_leave_little_to_the_draft() -> None:
    def drafted(known: KnownTree) -> int:
        given = controller()
        (choice,) = given.plan([view(given, known)], 0)
        return choice.budget.max_nodes if choice.budget else 0

    assert drafted(NOTHING_KNOWN) >= drafted(VAGUE) > 0
    assert drafted(SURE) == 0


def test_candidates_pay_together_for_there_being_any() -> None:
    """Where a step with candidates costs a fifth more than one without."""
    costs = ReferenceCosts(row=0.01, free_rows=0, level=3.0, node=0.0, trees=0.2)
    given = Controller(ControllerSettings(8, 0.0), costs, costs)
    fair = KnownTree((5,), (0,), ("ngram",), (0.5,))

    def verified(*known: KnownTree) -> list[bool]:
        views = [view(given, one) for one in known]
        choices = given.plan(views, 0)
        assert all(choice.budget is None for choice in choices), "drafting is too expensive here"
        for choice, one in zip(choices, known, strict=True):
            assert choice.known or choice.off is Off.NO_GAIN or not one.num_nodes
        return [choice.known and one.num_nodes > 0 for choice, one in zip(choices, known, strict=True)]

    others = [NOTHING_KNOWN] * 7
    assert verified(fair, *others) == [False] * 8
    assert verified(SURE, *others) == [True] + [False] * 7
    assert verified(*[fair] * 8) == [True] * 8
    assert verified(fair, SURE, *others[1:]) == [True, True] + [False] * 6, "it costs nothing more beside it"
    assert verified(VAGUE, SURE, *others[1:])[1]


def test_a_seeds_known_candidates_must_pay_alone_whoever_else_has_some() -> None:
    costs = ReferenceCosts(row=0.01, free_rows=0, level=3.0, node=0.0, trees=0.4)
    for others in (0, 7):
        given = Controller(ControllerSettings(8, 0.0), costs, costs)
        seeded = view(given, VAGUE, is_free=False)
        seeded.history.turn(on=False, length=seeded.length)
        seeded.history.tried(kept=False)
        choices = given.plan([seeded, *(view(given, SURE) for _ in range(others))], 0)
        assert not choices[0].known
        assert given.late(seeded) == choices[0]
        sure = view(given, SURE, is_free=False)
        assert given.plan([sure], 0)[0].known


def test_a_step_that_shows_plain_decoding_has_no_candidates_at_all() -> None:
    given = controller(probes=0.5)
    choices = [given.plan([view(given, SURE)], 0)[0].off for _ in range(6)]
    assert Off.BASELINE in choices
    assert any(off is not Off.BASELINE for off in choices)


def test_a_server_without_a_draft_has_plain_steps_measured_too() -> None:
    given = controller(probes=0.25)
    sure = view(given, KnownTree((3, 4), (0, 1), ("ngram", "ngram"), (0.95, 0.95)), max_nodes=0)
    choices = [given.plan([sure], 0)[0] for _ in range(100)]
    assert 24 <= sum(choice.off is Off.BASELINE for choice in choices) <= 28
    assert all(choice.known for choice in choices if choice.off is None)
