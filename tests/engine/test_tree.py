"""Shapes of candidate trees: within their budget, numbered as they say, cut from the bottom."""

from __future__ import annotations

import itertools

import pytest

from resispec.engine.drawing import Drawing
from resispec.engine.tree import Level, TreeShape, plan_shape


@pytest.mark.parametrize("drawing", list(Drawing))
@pytest.mark.parametrize("greedy", [True, False])
def test_a_plan_keeps_to_its_budget_and_uses_it(drawing: Drawing, greedy: bool) -> None:
    for nodes, depth in itertools.product(range(1, 70), range(1, 9)):
        shape = plan_shape(nodes, depth, greedy=greedy, drawing=drawing)
        assert 1 <= shape.depth <= depth
        assert min(nodes, depth) <= shape.num_nodes <= nodes or shape.depth * 2 >= nodes
        if drawing is not Drawing.CHAIN:
            assert shape.num_nodes >= 0.75 * nodes
        for above, level in itertools.pairwise(shape.levels):
            assert 1 <= level.expand <= above.num_nodes
        for level in shape.levels:
            assert level.num_head >= 0
            drawn = not greedy and drawing is not Drawing.HEAD
            assert (level.num_tail >= 1) == drawn
            assert level.num_children >= 1


def test_slots_are_numbered_level_by_level() -> None:
    shape = TreeShape((Level(1, 1, 1), Level(2, 2, 1)))
    assert shape.num_nodes == 8
    assert shape.num_expanded == 3
    assert shape.first_slots == (1, 3)
    assert TreeShape((Level(1, 3, 0), Level(2, 4, 0, shared=True), Level(2, 1, 0))).first_slots == (1, 4, 8)
    assert shape.cut(1) == TreeShape((Level(1, 1, 1),))
    assert shape.cut(2) is shape


def test_few_candidates_make_a_chain() -> None:
    assert [level.num_children for level in plan_shape(3, 3, greedy=False).levels] == [1, 1, 1]
    assert [level.num_nodes for level in plan_shape(4, 3, greedy=False).levels] == [2, 2]
    assert [level.num_nodes for level in plan_shape(12, 3, greedy=False).levels] == [4, 4, 4]
