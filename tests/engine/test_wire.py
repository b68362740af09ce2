"""Messages come out of the pipe as they went in."""

from __future__ import annotations

import math

from resispec.engine.outputs import (
    FinishedStats,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    SourceCounts,
    SpeculationMetrics,
    SpeculationStats,
    StepResult,
    StepStats,
    TokenLogprobs,
    Usage,
)
from resispec.engine.request import SpeculationMode
from resispec.engine.trace import StepTrace, TraceCandidate, TraceToken
from resispec.engine.wire import Rejected, Wire
from resispec.models.compiled.state import CompileState, CompileStatus


def test_a_result_with_everything_in_it() -> None:
    speculation = SpeculationMetrics(
        "resispec",
        exact=True,
        mode=SpeculationMode.AUTO,
        notes=("cut",),
        acceptance_histogram=(3, 1),
        by_source=(SourceCounts("draft", 7, 3),),
        draft_ms=0.1 + 0.2,
    )
    metrics = RequestMetrics(0.0, 1.5, 2.0, 3.25, 1e-9, 4.0, 1e9, 2, speculation)
    candidate = TraceCandidate(
        1, 0, 1, 0, 5, "head", 0.1, None, 0.2, 1.0, None, 0.3, shared=False, reached=True, kept=True
    )
    trace = StepTrace(3, "resispec", (candidate,), (TraceToken(5, "é\n", "head", 0.1, None),))
    output = RequestOutput(
        "request-1",
        'text with "quotes" and 🙂',
        (1, 2, 49151),
        Usage(10, 3, 4),
        FinishReason.STOP,
        "stop here",
        metrics,
        trace=(trace,),
        text_ends=(1, 2, 3),
        logprobs=(TokenLogprobs(1, -math.inf, 7, ((1, -0.1), (2, -2.5))),),
    )
    by_id = RequestOutput("request-2", "", (), Usage(1, 0), FinishReason.STOP, 2)
    failed = RequestOutput("request-3", "", (), Usage(1, 0), FinishReason.ERROR, error="it failed")
    stats = StepStats(
        num_running=3,
        kv_usage_target=0.1,
        time_to_first_token=(0.25,),
        finished=(FinishedStats(FinishReason.STOP, Usage(10, 3, 4), metrics),),
        speculation=(SpeculationStats("resispec", True, 1, 7, (3,), (7,), (1,), (1,), (1,)),),
        speculation_off=(("kv_memory", 1),),
        phase_seconds=(("verify", 0.5),),
        compilation=CompileStatus(CompileState.ON, "took 3 s"),
    )
    result = StepResult((output, by_id, failed), stats)
    (received,) = Wire().feed(Wire().encode(result))
    assert received == result
    assert isinstance(received, StepResult)
    assert received.outputs[0].finish_reason is FinishReason.STOP


def test_an_empty_result() -> None:
    assert Wire().feed(Wire().encode(StepResult((), StepStats()))) == [StepResult((), StepStats())]


def test_a_refusal() -> None:
    rejected = Rejected("request-1", "max_tokens is too large", "max_tokens")
    assert Wire().feed(Wire().encode(rejected)) == [rejected]


def test_messages_in_pieces() -> None:
    messages: list[StepResult | Rejected] = [
        StepResult((RequestOutput("a", "x" * 300, (1,), Usage(1, 1)),), StepStats(num_running=1)),
        Rejected("b", "no", None),
        StepResult((), StepStats()),
    ]
    data = b"".join(Wire().encode(message) for message in messages)
    for size in (1, 3, 4, 5, 100, len(data) - 1, len(data)):
        wire = Wire()
        pieces = [wire.feed(data[start : start + size]) for start in range(0, len(data), size)]
        assert [message for piece in pieces for message in piece] == messages
