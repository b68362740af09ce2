"""A head that reads layers of its target: served, it reads what it was trained on."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from resispec.engine.audit.laws import LawSource
from resispec.engine.build import LoadedDraft, LoadedTarget
from resispec.engine.config import EngineConfig
from resispec.engine.request import Request, SamplingParams
from resispec.models.device.cpu import CpuDevice
from resispec.models.distill.unrolled import head_states
from resispec.models.head.config import HeadConfig, TargetFingerprint
from resispec.models.head.module import HeadModule

from ..gpu_double import Again

LAYERS = (1, 0)


def reading_head(vocabulary: int) -> HeadModule:
    torch.manual_seed(3)
    marks = TargetFingerprint("tiny", vocabulary, 32, "0", (0.0,))
    config = HeadConfig(32, 4, 2, 8, 64, 1e4, 1e-6, 256, 20, marks, LAYERS)
    return HeadModule(config).requires_grad_(False).eval()


def states_of(model: Any, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The last states ``[1, N, H]`` and the layers' inputs ``[1, N, K * H]``, by transformers alone."""
    out = model.get_decoder()(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    inputs = torch.cat([out.hidden_states[number] for number in LAYERS], dim=-1)
    return out.last_hidden_state, inputs


def test_its_logits_are_those_of_training(tiny: Any) -> None:
    loaded = LoadedTarget(tiny.model(0), tiny.tokenizer(), "tiny", 256, tiny.vocabulary, (tiny.eos,), {})
    head, ids = reading_head(tiny.vocabulary), torch.arange(20) + 5
    config = EngineConfig("tiny", draft="tiny", dtype="float32", num_threads=1)
    laws = LawSource(config, loaded, LoadedDraft(256, head=deepcopy(head), vocab_ids=ids), 40)
    text = [3, 4, 5, 80, 7, 90, 11, 12]
    found = laws.positions(text, 2).draft
    model = tiny.model(0)
    embedded = model.get_input_embeddings()(torch.tensor([text]))
    states = head_states(head, embedded, states_of(model, text)[0], 1, states_of(model, text)[1])[0]
    expected = (states[0] @ model.lm_head.weight[ids].T)[2:-1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("waits", [False, True])
def test_rows_of_kept_candidates_hold_their_own_states(
    waits: bool, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After steps over trees, every row that the head reads is what one forward over the text gives.

    Where the host would wait for a device and steps are recorded, too.
    """
    recorder = Again()
    if waits:
        monkeypatch.setattr(CpuDevice, "reads_freely", False)
        monkeypatch.setattr(CpuDevice, "recorder", lambda self: recorder)
    head = reading_head(tiny.vocabulary)
    draft = LoadedDraft(256, head=head, vocab_ids=torch.arange(20) + 5)
    engine = tiny.engine(tiny.model(0), draft, proposers=("draft", "ngram"))
    prompt = (5, 6, 7, 5, 6, 7, 5)
    sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    ran = tiny.run(engine, [Request("a", prompt, sampling)])
    plain = tiny.run(tiny.engine(tiny.model(0)), [Request("a", prompt, sampling)])
    assert ran.tokens == plain.tokens
    assert ran.last["a"].metrics.speculation.num_accepted_draft_tokens > 5, "no row was ever moved"
    assert (recorder.replayed > 5) == waits
    text = [*prompt, *ran.tokens["a"]][:-2]  # the last tokens are never read
    kept = engine._runner._memories[0].states.read(torch.arange(len(text)))
    expected = head.joined(*states_of(tiny.model(0), text))[0]
    torch.testing.assert_close(kept, expected, rtol=1e-3, atol=1e-3)
