"""Half-grown trees: what a request is drafted does not depend on whose trees grow beside its own."""

from __future__ import annotations

import pytest
import torch

from resispec.engine.drawing import Drawing
from resispec.engine.known_tree import NOTHING_KNOWN, KnownTree
from resispec.engine.proposers.base import DraftItem
from resispec.engine.proposers.growing import GrowingTrees
from resispec.engine.request import SamplingParams
from resispec.engine.tree import Level, TreeShape, plan_shape

NUM_IDS = 400
WIDE = KnownTree(tuple(range(30, 39)), (0,) * 9, ("recycle",) * 9, (0.1,) * 9)
ONE = KnownTree((31, 32), (0, 1), ("ngram",) * 2, (0.1,) * 2)


def grown(shape: TreeShape, known: KnownTree, company: list[KnownTree]) -> list[list[int]]:
    """The first request's tokens and parents; the draft says the same behind every token."""
    uniforms = torch.rand(shape.num_nodes, generator=torch.Generator().manual_seed(4)).tolist()
    items = [
        DraftItem((5,), 3, 0, shape, SamplingParams(temperature=1.0), tuple(uniforms), tree)
        for tree in (known, *company)
    ]
    trees = GrowingTrees(shape, items, torch.device("cpu"))
    for depth in range(shape.depth):
        rows = trees.frontier.flatten()
        draws = [torch.Generator().manual_seed(depth) for _ in rows]
        # A few values only, so that many tokens are equally likely.
        logits = [torch.randint(0, 3, (NUM_IDS,), generator=draw).float() for draw in draws]
        trees.take(torch.stack(logits), None)
        trees.add_level(depth, NUM_IDS, None)
    own = 1 + shape.num_nodes + known.num_nodes
    levels = [level.parents[0].tolist() for level in trees.levels]
    return [trees.tokens[0, :own].tolist(), trees.parents[0, :own].tolist(), *levels]


@pytest.mark.parametrize("shares_nodes", [True, False])
@pytest.mark.parametrize("drawing", [Drawing.HEAD_AND_TAIL, Drawing.HEAD, Drawing.INDEPENDENT])
@pytest.mark.parametrize("known", [NOTHING_KNOWN, ONE], ids=["nothing known", "one path known"])
def test_equally_likely_tokens_come_in_one_order_in_any_company(
    drawing: Drawing, shares_nodes: bool, known: KnownTree
) -> None:
    for nodes, depth in ((6, 2), (12, 3), (24, 4)):
        shape = plan_shape(nodes, depth, greedy=False, drawing=drawing, shares_nodes=shares_nodes)
        alone = grown(shape, known, [])
        for company in ([NOTHING_KNOWN], [ONE], [WIDE], [WIDE, ONE, NOTHING_KNOWN]):
            assert grown(shape, known, company) == alone


@pytest.mark.parametrize("known", [NOTHING_KNOWN, ONE], ids=["nothing known", "one path known"])
def test_a_shared_level_holds_the_likeliest_children_of_all_its_nodes(known: KnownTree) -> None:
    shape = TreeShape((Level(1, 3, 0), Level(2, 5, 0, shared=True)), Drawing.HEAD)
    items = [DraftItem((5,), 3, 0, shape, SamplingParams(temperature=0.0), (0.5,) * 8, known)] * 6
    trees = GrowingTrees(shape, items, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    laws = []
    for depth in range(2):
        laws.append(4 * torch.randn(6 * shape.levels[depth].expand, 50, generator=generator))
        trees.take(laws[-1], None)
        trees.add_level(depth, 50, None)
    level = trees.levels[1]
    splits = set()
    for tree in range(6):
        nodes, offered = level.parents[tree].tolist(), level.proposal.tokens.view(6, 2, -1)[tree].tolist()
        slots = level.children[tree].tolist()
        likely: list[tuple[float, int, int]] = []
        for place, node in enumerate(nodes):
            law = laws[1].view(6, 2, -1)[tree, place].log_softmax(0)
            kept = [pair for pair in zip(slots[place], offered[place], strict=True) if pair[0] >= 0]
            below = [token for slot, token in kept if slot > 8]
            assert below == ([32] if known.num_nodes and trees.tokens[tree, node] == 31 else [])
            others = [token for token in range(50) if token not in below]
            likely += [(float(trees.scores[tree, node] + law[token]), node, token) for token in others]
            assert all(int(trees.tokens[tree, slot]) == token for slot, token in kept)
            assert all(int(trees.parents[tree, slot]) == node for slot, _ in kept)
            assert all(bool(trees.visible[tree, slot, node]) for slot, _ in kept)
            assert int(level.proposal.num_head.view(6, 2)[tree, place]) == len(kept)
        drafted = {(int(trees.parents[tree, slot]), int(trees.tokens[tree, slot])) for slot in range(4, 9)}
        assert drafted == {(node, token) for _, node, token in sorted(likely, reverse=True)[:5]}
        splits.add(sum(parent == nodes[0] for parent, _ in drafted))
    assert len(splits) > 1, "nodes get as many as their laws say"
