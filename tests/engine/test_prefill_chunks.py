"""Prompts beside requests that decode: in small chunks, and with the same answers."""

from __future__ import annotations

from typing import Any

import pytest

from resispec.engine.build import LoadedDraft
from resispec.engine.config import ConfigError
from resispec.engine.request import Request, SamplingParams

LONG = tuple((7 * i) % 60 + 2 for i in range(100))
SHORT = (5, 6, 7)
TINY = 1e-9  # milliseconds: time for the smallest chunk at most


def request(name: str, prompt: tuple[int, ...], tokens: int = 20) -> Request:
    return Request(name, prompt, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))


def answer(tiny: Any, asked: Request) -> list[int]:
    tokens: list[int] = tiny.run(tiny.engine(tiny.model(0)), [asked]).tokens[asked.request_id]
    return tokens


@pytest.mark.parametrize(("milliseconds", "chunks"), [(TINY, [16, 16, 16, 16, 16, 20]), (1e6, [100])])
def test_who_decodes_waits_for_one_chunk_at_a_time(tiny: Any, milliseconds: float, chunks: list[int]) -> None:
    engine = tiny.engine(tiny.model(0), max_prefill_ms=milliseconds, max_num_seqs=3)
    short, long = request("short", SHORT), request("long", LONG)
    tokens: dict[str, list[int]] = {"short": [], "long": []}
    engine.add(short)
    ran: list[int] = []
    while engine.has_work:
        result = engine.step()
        if len(tokens["short"]) == 1:
            engine.add(long)
        for output in result.outputs:
            tokens[output.request_id] += output.token_ids
        assert any(output.request_id == "short" for output in result.outputs) or len(tokens["short"]) == 20
        ran.append(result.stats.prompt_tokens)
    assert [count for count in ran if count][1:] == chunks
    assert tokens == {"short": answer(tiny, short), "long": answer(tiny, long)}


def test_a_prompt_alone_is_not_cut(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), max_prefill_ms=TINY)
    engine.add(request("long", LONG))
    engine.add(request("short", SHORT))
    assert engine.step().stats.prompt_tokens == len(LONG) + len(SHORT)


def test_those_that_wait_are_served_one_after_the_other(tiny: Any) -> None:
    engine = tiny.engine(tiny.model(0), max_prefill_ms=TINY, max_num_seqs=4)
    engine.add(request("first", SHORT))
    engine.step()
    for name in ("a", "b"):
        engine.add(request(name, (len(name), *LONG[:19], ord(name) - 60)))
    answered = [{output.request_id for output in engine.step().outputs} - {"first"} for _ in range(4)]
    assert answered == [{"a"}, {"a", "b"}, {"a", "b"}, {"a", "b"}]


@pytest.mark.parametrize(("max_step_nodes", "reads"), [(8, True), (1, False)])
def test_a_draft_reads_no_prompt_where_nothing_would_be_drafted(
    tiny: Any, max_step_nodes: int, reads: bool
) -> None:
    draft = LoadedDraft(256, model=tiny.model(3))
    engine = tiny.engine(tiny.model(0), draft, max_prefill_ms=TINY, max_step_nodes=max_step_nodes)
    engine.add(request("short", SHORT))
    engine.step()
    engine.add(request("long", LONG))
    for _ in range(4):
        engine.step()
    (long,) = (part for part in engine._scheduler.running if part.request_id == "long")
    assert long.target_rows == 64
    assert long.draft_rows == (48 if reads else 0)


def test_the_time_must_be_positive(tiny: Any) -> None:
    with pytest.raises(ConfigError, match="max_prefill_ms"):
        tiny.engine(tiny.model(0), max_prefill_ms=0.0)
