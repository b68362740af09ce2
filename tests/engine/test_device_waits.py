"""A step waits for its device once: when the tokens are read.

A GPU works on while the host goes ahead, until the host looks at a tensor, or hands over numbers in a way
that waits. Here the engine runs on the CPU as it would on a GPU, and what would wait is counted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams, SpeculationParams
from resispec.engine.runner.runner import Runner
from resispec.models.device.cpu import CpuDevice

from ..gpu_double import Again, Waits


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Notes what is waited for in `Runner.run`."""
    waits = Waits()
    put, run = CpuDevice.put, Runner.run

    def counted_put(self: CpuDevice, *args: Any, **kwargs: Any) -> torch.Tensor:
        with waits.putting():
            return put(self, *args, **kwargs)

    def counted_run(self: Runner, *args: Any, **kwargs: Any) -> Any:
        with waits:
            return run(self, *args, **kwargs)

    monkeypatch.setattr(CpuDevice, "put", counted_put)
    monkeypatch.setattr(CpuDevice, "reads_freely", False)
    monkeypatch.setattr(CpuDevice, "row_block", None)
    monkeypatch.setattr(CpuDevice, "attentions", ("segments", "flex"))
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(Runner, "run", counted_run)
    return waits


def requests(**sampling: Any) -> list[Request]:
    return [
        Request(
            f"r{number}",
            tuple(range(2, 9 + 3 * number)),
            SamplingParams(max_tokens=12, seed=number, ignore_eos=True, **sampling),
            SpeculationParams(enabled=number != 1),
        )
        for number in range(4)
    ]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "greedy": {"temperature": 0.0},
    "truncated": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"temperature": 0.7, "presence_penalty": 0.5, "logit_bias": ((5, 1.0),), "min_tokens": 4},
    "bad words": {"temperature": 0.7, "bad_words": ((5,), (6, 7))},
    "scored": {"temperature": 0.7, "logprobs": 2},
}


@pytest.mark.parametrize("attention", ["segments", "flex"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_waits_for_nothing_but_its_tokens(
    tiny: Any, kind: str, attention: str, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "recorder", lambda self: Again())
    draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    engine = tiny.engine(tiny.model(0), draft, attention=attention, prefix_caching=False)
    tiny.run(engine, requests(**KINDS[kind]))  # records what the counted run replays
    waits.seen.clear()
    ran = tiny.run(engine, requests(**KINDS[kind]))
    assert sum(len(tokens) for tokens in ran.tokens.values()) == 48
    assert waits.seen == []


def test_reads_are_noticed(tiny: Any, waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: an engine that may look at tensors does so."""
    monkeypatch.setattr(CpuDevice, "reads_freely", True)
    engine = tiny.engine(tiny.model(0))
    tiny.run(engine, requests(temperature=1.0, top_p=0.9))
    assert any("is_nonzero" in seen for seen in waits.seen)
