"""Shapes of trees by the way their children are drawn."""

from __future__ import annotations

import pytest

from resispec.engine.drawing import Drawing
from resispec.engine.tree import Level, TreeShape, plan_shape


@pytest.mark.parametrize("drawing", [Drawing.INDEPENDENT, Drawing.WITHOUT_REPLACEMENT])
def test_only_draws(drawing: Drawing) -> None:
    shape = plan_shape(12, 3, greedy=False, drawing=drawing)
    default = plan_shape(12, 3, greedy=False)
    assert [(level.num_head, level.num_tail) for level in shape.levels] == [
        (0, level.num_children) for level in default.levels
    ]
    assert shape.drawing is drawing
    greedy = plan_shape(12, 3, greedy=True, drawing=drawing)
    assert greedy.levels == plan_shape(12, 3, greedy=True).levels
    assert greedy.drawing is Drawing.HEAD


@pytest.mark.parametrize("greedy", [False, True])
def test_a_chain_has_one_child_a_node(greedy: bool) -> None:
    shape = plan_shape(12, 3, greedy=greedy, drawing=Drawing.CHAIN)
    assert shape.drawing is Drawing.CHAIN
    assert shape.levels == (Level(1, 1, 0) if greedy else Level(1, 0, 1),) * 3
    assert plan_shape(2, 9, greedy=greedy, drawing=Drawing.CHAIN).depth == 2


def test_a_cut_keeps_how_children_are_drawn() -> None:
    shape = plan_shape(12, 3, greedy=False, drawing=Drawing.INDEPENDENT, shares_nodes=False).cut(1)
    assert (shape.depth, shape.drawing, shape.shares_nodes) == (1, Drawing.INDEPENDENT, False)


def test_which_levels_are_even() -> None:
    whole = TreeShape((Level(1, 0, 2), Level(2, 0, 2), Level(4, 0, 2)))
    assert [whole.is_even(depth) for depth in range(3)] == [True, True, True]
    partial = TreeShape((Level(1, 0, 2), Level(2, 0, 2), Level(1, 0, 2)))
    assert [partial.is_even(depth) for depth in range(3)] == [False, False, True]
    one_draw = TreeShape((Level(1, 3, 1), Level(2, 0, 1), Level(1, 0, 2)))
    assert [one_draw.is_even(depth) for depth in range(3)] == [True, True, True]


def test_who_decides_how_many_are_drawn() -> None:
    """Of two children one is drawn; of more the draft's law decides at each node."""
    pairs = plan_shape(4, 2, greedy=False)
    assert pairs.levels == (Level(1, 1, 1), Level(2, 0, 1))
    wide = plan_shape(8, 2, greedy=False)
    assert wide.levels == (Level(1, 0, 4, adaptive=True), Level(2, 1, 1))
    chosen = (Level(1, 5, 0), Level(2, 3, 0, shared=True))
    assert plan_shape(8, 2, greedy=True).levels == chosen
    assert plan_shape(8, 2, greedy=False, drawing=Drawing.HEAD).levels == chosen


def test_chosen_children_use_up_the_budget_and_get_fewer_on_the_way_down() -> None:
    assert [level.num_nodes for level in plan_shape(16, 4, greedy=True).levels] == [6, 5, 3, 2]
    assert [level.num_nodes for level in plan_shape(12, 3, greedy=True).levels] == [6, 4, 2]
    assert plan_shape(4, 4, greedy=True).levels == (Level(1, 1, 0),) * 4
    for depth in range(1, 9):
        for nodes in range(2 * depth, 99):
            sizes = [level.num_nodes for level in plan_shape(nodes, depth, greedy=True).levels]
            assert (len(sizes), sum(sizes)) == (depth, nodes)
            assert sizes == sorted(sizes, reverse=True)
