"""The trie of all sources' paths, the table of recycled tokens, and who shares what."""

from __future__ import annotations

import itertools
import random

from resispec.engine.known_tree import NOTHING_KNOWN, KnownTree
from resispec.engine.request import Request, SamplingParams
from resispec.engine.sources.base import Path
from resispec.engine.sources.factory import SOURCES, SourceFactory
from resispec.engine.sources.merge import merge
from resispec.engine.sources.recycle import NUM_TOPS, RecycleSource, TopTable
from resispec.engine.tree import CandidateTree, plan_shape


def ways(tree: KnownTree) -> dict[tuple[int, ...], float]:
    """Every node's tokens from the root, and the chance of the whole way."""
    found: dict[tuple[int, ...], float] = {}
    at: list[tuple[int, ...]] = [()]
    for token, parent, chance in zip(tree.tokens, tree.parents, tree.chances, strict=True):
        at.append((*at[parent], token))
        assert at[-1] not in found, "siblings with one token"
        found[at[-1]] = found.get(at[parent], 1.0) * chance
    return found


def test_the_likeliest_nodes_are_kept() -> None:
    rng = random.Random(1)
    for _ in range(300):
        paths = [
            Path(tuple(rng.randrange(3) for _ in range(length)), tuple(rng.random() for _ in range(length)))
            for length in [rng.randrange(1, 5) for _ in range(rng.randrange(6))]
        ]
        expected: dict[tuple[int, ...], float] = {}
        for path in paths:
            for length in range(1, min(len(path.tokens), 3) + 1):
                chance = 1.0
                for step in path.chances[:length]:
                    chance *= step
                way = path.tokens[:length]
                expected[way] = max(expected.get(way, 0.0), chance)
        expected = {way: chance for way, chance in expected.items() if chance >= 0.05}
        tree = merge([("a", paths[::2]), ("b", paths[1::2])], 4, 3, 0.05)
        kept = ways(tree)
        assert len(kept) == min(4, len(expected))
        for way, chance in kept.items():
            assert abs(chance - expected[way]) < 1e-12
        left = [expected[way] for way in expected if way not in kept]
        assert not left or max(left) <= min(kept.values()) + 1e-12
    assert merge([], 4, 4, 0.05) is NOTHING_KNOWN


def test_a_chain_is_numbered_in_a_row_and_the_first_source_has_the_credit() -> None:
    chain = Path((1, 2, 3), (0.9, 0.9, 0.9))
    side = Path((1, 7), (0.5, 0.2))
    tree = merge([("a", [side]), ("b", [chain])], 8, 8, 0.01)
    assert tree.tokens == (1, 2, 3, 7)
    assert tree.parents == (0, 1, 2, 1)
    assert tree.sources == ("a", "b", "b", "a")
    assert tree.depths == (0, 1, 2, 3, 2)
    assert tree.children == ((1,), (2, 4), (3,), (), ())
    assert tree.lineage[3].tolist() == [True, True, True, True, False]


def test_a_tree_tells_drafted_from_known() -> None:
    known = KnownTree((5, 6), (0, 1), ("ngram", "recycle"), (0.5, 0.5))
    tree = CandidateTree(plan_shape(4, 2, greedy=False), known)  # slots 1 2 | 3 4 drafted, 5 6 known
    assert (tree.num_nodes, tree.depth, tree.num_tests) == (6, 2, (2 + 1) + 2 * (1 + 1) + 2)
    assert [tree.source_of(slot) for slot in (1, 4, 5, 6)] == ["draft", "draft", "ngram", "recycle"]
    assert [tree.num_run_by_draft(path) for path in ((), (5,), (5, 6), (5, 3), (2, 4))] == [0, 0, 0, 1, 1]
    assert dict(tree.proposed_by_source) == {"draft": 4, "ngram": 1, "recycle": 1}


def test_recycled_tokens_grow_the_likeliest_paths() -> None:
    table = TopTable()
    source = RecycleSource(table)
    assert source.paths([1], 8) == ()
    source.observe([(1, (2, 3)), (2, (4, 5)), (4, (6, 7))])
    paths = source.paths([1], 4)
    assert (2, 4, 6) in {path.tokens for path in paths}
    assert {path.tokens[0] for path in paths} == {2, 3}
    assert all(len(path.tokens) == len(path.chances) for path in paths)
    text = [1]
    for _ in range(30):
        text += [3, 1]
        source.committed(text, len(text) - 2)
    by_first = {path.tokens[0]: path.chances[0] for path in source.paths([1], 4)}
    assert by_first[3] > by_first[2], "the second rank has been right all along"


def test_a_table_forgets_the_least_recent() -> None:
    table = TopTable(capacity=3)
    for token in (1, 2, 3, 1, 4):
        table.put(token, (token,) * NUM_TOPS)
    assert len(table) == 3
    assert [bool(table.get(token)) for token in (1, 2, 3, 4)] == [True, False, True, True]


def test_requests_share_by_salt_and_never_with_a_seed() -> None:
    factory = SourceFactory()

    def make(salt: str, seed: int | None = None, owner: str = "") -> set[str]:
        request = Request("r", (1, 2), SamplingParams(seed=seed), cache_salt=salt, owner=owner)
        sources = factory.make(request, SOURCES)
        said = sources.known_tree([1, 2], 8, 8, 0.01)
        sources.committed([1, 2, 3, 4], 2, [(2, (40 + len(salt),))])
        sources.finished([1, 2, 3, 4])
        return set(said.sources)

    assert make("a") == set()
    assert make("a") == {"recycle"}
    assert make("bb") == set()
    assert make("a", owner="another key") == set()
    assert make("a", seed=1) == set()
    tokens = {salt: make(salt) for salt in map(str, itertools.chain(range(100)))}
    assert not any(tokens.values())
    assert make("a") == set(), "owners are forgotten in turn"
