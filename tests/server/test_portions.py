"""Portions of a choice: tokens go with their text, in the size asked for, and nothing is lost."""

from __future__ import annotations

import random

import pytest

from resispec.engine.outputs import FinishReason, RequestOutput, TokenLogprobs, Usage
from resispec.server.portions import Portions


def outputs(rng: random.Random, *, cut: bool) -> list[RequestOutput]:
    """An answer as an engine gives it: text lags behind tokens; with ``cut`` a stop string shortens it."""
    widths = [rng.choice((0, 0, 1, 1, 2, 5)) for _ in range(rng.randrange(1, 30))]
    ends = [sum(widths[: place + 1]) for place in range(len(widths))]
    text = "".join(chr(97 + place % 26) for place in range(ends[-1]))
    final = text[: max(0, len(text) - rng.randrange(4))] if cut else text
    made, token, given = [], 0, 0
    while token < len(widths):
        count = min(rng.randrange(1, 5), len(widths) - token)
        is_last = token + count == len(widths)
        known = ends[token + count - 1]
        released = len(final) if is_last else min(len(final), max(given, known - rng.randrange(4)))
        made.append(
            RequestOutput(
                "a",
                final[given:released],
                tuple(range(token, token + count)),
                Usage(3, token + count),
                FinishReason.STOP if is_last else None,
                "stop" if is_last else None,
                text_ends=tuple(ends[token : token + count]),
                logprobs=tuple(TokenLogprobs(i, -1.0, 1) for i in range(token, token + count)),
                prompt_logprobs=(TokenLogprobs(9, -1.0, 1),) if token == 0 else (),
            )
        )
        token, given = token + count, released
    return made


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("interval", [None, 1, 3, 100])
def test_nothing_is_lost_and_text_goes_with_its_tokens(interval: int | None, cut: bool) -> None:
    rng = random.Random(5)
    for _ in range(300):
        came = outputs(rng, cut=cut)
        portions = Portions(interval)
        parts = [part for output in came for part in portions.split(output)]
        for name in ("text", "token_ids", "text_ends", "logprobs", "prompt_logprobs"):
            everything = [value for output in came for value in getattr(output, name)]
            assert [value for part in parts for value in getattr(part, name)] == everything
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == (FinishReason.STOP, "stop")
        if interval is not None:
            assert all(len(part.token_ids) == interval for part in parts[:-1])
            assert len(parts[-1].token_ids) <= interval
        text, tokens = "", 0
        for part in parts[:-1]:
            text, tokens = text + part.text, tokens + len(part.token_ids)
            assert len(text) == min(part.text_ends[-1], sum(len(output.text) for output in came))
            assert part.usage.completion_tokens == tokens
        assert parts[-1].usage == came[-1].usage


def test_a_token_waits_for_its_text() -> None:
    portions = Portions()
    first = RequestOutput("a", "", (1, 2), Usage(1, 2), text_ends=(0, 1))
    assert [part.token_ids for part in portions.split(first)] == [(1,)]
    assert list(portions.split(RequestOutput("a", "", (3,), Usage(1, 3), text_ends=(2,)))) == []
    (part,) = portions.split(RequestOutput("a", "é", (), Usage(1, 3)))
    assert (part.text, part.token_ids) == ("é", (2,))
    (last,) = portions.split(RequestOutput("a", "", (), Usage(1, 3), FinishReason.ABORT))
    assert (last.text, last.token_ids, last.finish_reason) == ("", (3,), FinishReason.ABORT)
