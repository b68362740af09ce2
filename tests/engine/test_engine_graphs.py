"""Engines whose steps are recorded give the same answers as those whose steps are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.request import Request, SamplingParams, SpeculationMode, SpeculationParams
from resispec.models.device.cpu import CpuDevice
from resispec.models.graphs import ReplayedModel
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

from ..gpu_double import Again


def requests(tiny: Any) -> list[Request]:
    """Prompts of all lengths, with and without speculation, greedy and not, one with a trace."""
    made = []
    for number in range(9):
        prompt = tuple((7 * number + 3 * i) % tiny.vocabulary for i in range(3 + 11 * number))
        mode = SpeculationMode.OFF if number % 4 == 3 else SpeculationMode.FIXED
        made.append(
            Request(
                f"r{number}",
                prompt,
                SamplingParams(
                    temperature=0.0 if number % 2 else 0.9,
                    seed=number,
                    max_tokens=16,
                    ignore_eos=True,
                    logprobs=1,
                ),
                SpeculationParams(mode=mode, trace=number == 2),
            )
        )
    return made


def load_draft(tiny: Any, kind: str) -> LoadedDraft:
    if kind == "model":
        return LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1))
    torch.manual_seed(3)
    fingerprint = TargetFingerprint("tiny", tiny.vocabulary, 32, "0", (0.0,))
    config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 64, fingerprint)
    head = HeadModule(config).requires_grad_(False).eval()
    return LoadedDraft(256, head=head, vocab_ids=torch.arange(64) * 2)


@pytest.mark.parametrize("attention", ["segments", "flex"])
@pytest.mark.parametrize("draft", ["model", "head", None])
def test_the_same_answers(
    tiny: Any, attention: str, draft: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(CpuDevice, "attentions", ("segments", "flex"))

    def engine(**config: Any) -> Any:
        loaded = None if draft is None else load_draft(tiny, draft)
        return tiny.engine(tiny.model(1), loaded, max_num_seqs=5, dtype="float32", **config)

    plain = tiny.run(engine(attention="segments"), requests(tiny))
    recorder = Again()
    monkeypatch.setattr(CpuDevice, "recorder", lambda self: recorder)
    recorded = engine(attention=attention)
    assert isinstance(recorded._runner._target, ReplayedModel)
    assert recorded.info.attention == attention
    ran = tiny.run(recorded, requests(tiny))
    assert recorder.replayed > 20
    assert ran.tokens == plain.tokens
    assert engine(attention=attention, cuda_graphs=False)._runner._target.__class__ is not ReplayedModel


@pytest.mark.cuda
@pytest.mark.parametrize("attention", ["segments", "flex"])
@pytest.mark.parametrize("graphs", [True, False])
def test_a_gpu_gives_the_cpus_answers(tiny: Any, attention: str, graphs: bool) -> None:
    """In float32, where it chooses the likeliest token."""

    def answers(device: str, **config: Any) -> Any:
        draft = LoadedDraft(256, model=tiny.model(7, num_hidden_layers=1).to(device))
        engine = tiny.engine(tiny.model(1).to(device), draft, max_num_seqs=5, dtype="float32", **config)
        greedy = [r for r in requests(tiny) if r.sampling.temperature == 0]
        return tiny.run(engine, greedy).tokens

    assert answers("cuda", attention=attention, cuda_graphs=graphs) == answers("cpu")
