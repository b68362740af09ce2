"""Requests with one prompt compute it once, even if they come together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams

PROMPT = tuple(range(2, 102))


def copies(count: int, **changes: Any) -> list[Request]:
    return [
        replace(Request(str(i), PROMPT, SamplingParams(max_tokens=12, seed=i, ignore_eos=True)), **changes)
        for i in range(count)
    ]


def alone(tiny: Any, requests: list[Request]) -> dict[str, list[int]]:
    engine = tiny.engine(tiny.model(0), prefix_caching=False)
    return {r.request_id: tiny.run(engine, [r]).tokens[r.request_id] for r in requests}


@pytest.mark.parametrize("budget", [40, 512])
@pytest.mark.parametrize("draft", [False, True])
def test_a_prompt_is_computed_once(tiny: Any, budget: int, draft: bool) -> None:
    engine = tiny.engine(
        tiny.model(0),
        LoadedDraft(256, model=tiny.model(3)) if draft else None,
        max_num_batched_tokens=budget,
        max_num_seqs=3,
    )
    ran = tiny.run(engine, copies(4))
    assert sum(stats.prompt_tokens for stats in ran.stats) == len(PROMPT) + 3
    assert sorted(output.usage.cached_tokens for output in ran.last.values()) == [0, 99, 99, 99]
    if not draft:
        assert ran.tokens == alone(tiny, copies(4))


def test_others_need_not_wait(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), max_num_batched_tokens=120)
    other = Request("other", (5, 6, 7), SamplingParams(max_tokens=1))
    for request in [*copies(3), other]:
        engine.add(request)
    assert {output.request_id for output in engine.step().outputs} == {"0", "other"}
    assert {output.request_id for output in engine.step().outputs} == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({"prefix_caching": False}, [{}, {}]),
        ({}, [{"cache_salt": "a"}, {"cache_salt": "b"}]),
        ({}, [{}, {"sampling": SamplingParams(max_tokens=12, prompt_logprobs=0)}]),
        ({}, [{"prompt_token_ids": (3, 4, 5)}, {"prompt_token_ids": (3, 4, 5)}]),
    ],
)
def test_who_cannot_share_does_not_wait(
    tiny: Any, config: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    engine = tiny.engine(tiny.model(0), **config)
    for request, change in zip(copies(2), changes, strict=True):
        engine.add(replace(request, **change))
    assert len(engine.step().outputs) == 2


def test_one_that_is_ended_leaves_its_place_to_the_next(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), max_num_batched_tokens=40, max_num_seqs=2)
    for request in copies(3):
        engine.add(request)
    engine.step()
    engine.abort("0")
    finished: dict[str, int] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            if output.finish_reason is not None:
                finished[output.request_id] = output.usage.completion_tokens
    assert finished == {"0": 0, "1": 12, "2": 12}
