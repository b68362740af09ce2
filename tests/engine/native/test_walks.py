"""Walks in one call of our kernels against the same laws, tests and draws by torch's operations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.drawing import Drawing
from resispec.engine.native import TreeRows, kernels_for
from resispec.engine.request import Request, SamplingParams, SpeculationMode, SpeculationParams
from resispec.engine.runner.native_walk import can_walk
from resispec.engine.sources.base import Path
from resispec.engine.sources.factory import SourceFactory
from resispec.engine.sources.request_sources import RequestSources
from resispec.engine.verifiers.base import Proposal

CPU = torch.device("cpu")
CAN_WALK = "resispec.engine.runner.verify.can_walk"
PLAIN: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.6}]


class Guesses:
    """One or two paths behind every token, which depend on the text alone."""

    name = "guesses"

    def paths(self, token_ids: Sequence[int], max_tokens: int) -> tuple[Path, ...]:
        rng = random.Random(hash(tuple(token_ids[-4:])))
        tokens = [tuple(rng.randrange(128) for _ in range(min(max_tokens, 3))) for _ in range(2)]
        return tuple(Path(path, (0.5,) * len(path)) for path in tokens if path)

    def committed(self, token_ids: Sequence[int], start: int) -> None:
        assert start <= len(token_ids)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How often the kernels walked, and how often they were not asked."""
    if kernels_for(CPU) is None:
        pytest.skip("no kernels were built")
    counts: Counter[bool] = Counter()

    def counted(*args: Any) -> bool:
        can = can_walk(*args)
        counts[can] += 1
        return can

    monkeypatch.setattr(CAN_WALK, counted)
    return counts


def requests(*params: dict[str, Any], verifier: str = "resispec", **wanted: Any) -> list[Request]:
    return [
        Request(
            f"{verifier} {index}",
            (5, 6, 7, index),
            SamplingParams(max_tokens=30 - index, ignore_eos=True, seed=index, **used, **wanted),
            SpeculationParams(verifier=verifier, mode=SpeculationMode.FIXED),
        )
        for index, used in enumerate(params)
    ]


def outcome(ran: Any) -> tuple[Any, ...]:
    """All that requests get to see, and in how many steps."""
    counts = {
        key: (spec.accepted_by_child, spec.accepted_by_depth, spec.by_source)
        for key, last in ran.last.items()
        if (spec := last.metrics.speculation) is not None
    }
    scores = {key: last.logprobs for key, last in ran.last.items()}
    return ran.tokens, counts, scores, len(ran.stats)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("wanted", [{}, {"logprobs": 2}])
def test_kernels_walk_as_torch_does(
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    ways: Counter[bool],
    known: bool,
    drafted: bool,
    wanted: dict[str, Any],
) -> None:
    if known:
        monkeypatch.setattr(SourceFactory, "make", lambda *_: RequestSources([Guesses()]))
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1)) if drafted else None
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3)
    walked = tiny.run(engine, requests(*PLAIN, *PLAIN, **wanted))
    assert ways[True] > 5
    assert not ways[False]
    monkeypatch.setattr(CAN_WALK, lambda *_: False)
    assert outcome(walked) == outcome(tiny.run(engine, requests(*PLAIN, *PLAIN, **wanted)))


@pytest.mark.parametrize("verifier", ["resispec-tree", "specinfer", "resispec-paper"])
def test_other_rules_walk_only_where_nothing_is_drawn(tiny: Any, ways: Counter[bool], verifier: str) -> None:
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3, allow_inexact=True)
    for params, walks in (({"temperature": 1.0}, False), ({"temperature": 0.0}, verifier == "specinfer")):
        ways.clear()
        tiny.run(engine, requests(params, verifier=verifier))
        assert ways[walks] > 3
        assert ways[not walks] <= 2  # a step without a tree: the prompt's, or the last


@pytest.mark.parametrize(
    "adjusts", [{"top_p": 0.9}, {"top_k": 5}, {"presence_penalty": 0.5}, {"logit_bias": ((5, 1.0),)}]
)
def test_laws_that_are_no_softmax(tiny: Any, ways: Counter[bool], adjusts: dict[str, Any]) -> None:
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, max_tree_nodes=12, max_tree_depth=3)
    tiny.run(engine, requests({"temperature": 1.0, **adjusts}))
    assert set(ways) == {False}


def chain() -> TreeRows:
    """Node 1 below node 0, by token 3."""
    one = torch.ones(1, dtype=torch.long)
    none = one.new_zeros(1, 0)
    proposal = Proposal(
        torch.tensor([[3]]),
        num_head=one,
        num_tail=one - 1,
        tail_ids=none,
        tail_probs=none.double(),
        tail_index=torch.zeros(1, 1, dtype=torch.long),
        drawings=frozenset({Drawing.HEAD}),
    )
    return TreeRows(one - 1, torch.tensor([[0]]), torch.tensor([[[1]]]), proposal, one - 1)


def walk(logits: torch.Tensor, temperature: float, uniform: float) -> list[int]:
    kernels = kernels_for(CPU)
    if kernels is None:
        pytest.skip("no kernels were built")
    numbers = torch.tensor([uniform], dtype=torch.float64)
    rows = [chain()]
    roots = torch.zeros(1, dtype=torch.long)
    (result,) = kernels.walk(
        logits, roots, torch.tensor([temperature]), numbers / 2, rows, numbers, 1
    ).tolist()
    return list(result)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_walk_of_one_node(temperature: float) -> None:
    logits = torch.zeros(2, 20)
    logits[0, 3] = logits[1, 7] = 100.0
    assert walk(logits, temperature, 0.5) == [1, 7, 0, 0, 1, 3, 0]
    logits[0, 4] = 200.0
    assert walk(logits, temperature, 0.5) == [0, 4, 0, 0, -1, -1, -1]


def test_an_empty_rest_is_drawn_from_the_law() -> None:
    """A uniform of 1, which there is none of, refuses the only token."""
    logits = torch.full((2, 20), -torch.inf)
    logits[:, 3] = 0.0
    assert walk(logits, 1.0, 1.0) == [0, 3, 1, 0, -1, -1, -1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("node", [0, 1])
def test_no_law_on_the_way(temperature: float, node: int) -> None:
    logits = torch.zeros(2, 20)
    logits[0, 3] = 100.0
    logits[node, 5] = torch.nan
    assert walk(logits, temperature, 0.5)[3] == 1
    logits[0, 3], logits[0, 9] = 0.0, 100.0
    assert walk(logits, temperature, 0.5)[3] == (node == 0)
