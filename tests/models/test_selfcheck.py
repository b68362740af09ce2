"""The check at load: refuses other results, and takes transformers' own rounding for what it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from resispec.models.attention import StepContext
from resispec.models.base import ModelError
from resispec.models.causal import probe_geometry
from resispec.models.selfcheck import SelfCheck


def noisy_model(dtype: torch.dtype) -> Any:
    """Deep and wild: in bfloat16, two of transformers' own ways of attention differ by 7 %."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=1.0,
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_rounds_coarsely_is_served(dtype: torch.dtype) -> None:
    model = noisy_model(dtype)
    SelfCheck(model, probe_geometry(model), 200).run()
    if dtype == torch.bfloat16:
        ids = torch.tensor([[(7919 * i + 13) % 128 for i in range(24)]])
        logits = []
        for name in ("eager", "sdpa"):
            model.set_attn_implementation(name)
            with torch.inference_mode():
                logits.append(model(input_ids=ids, use_cache=False).logits.float())
        assert (logits[1] - logits[0]).norm() > 0.05 * logits[0].norm()  # or this tests nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", ["a decoy seen", "a wrong scale"])
def test_other_results_are_refused(dtype: torch.dtype, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy_model(dtype)
    check = SelfCheck(model, probe_geometry(model), 200)
    attend = StepContext.attend

    def wrong(self: StepContext, query: Any, layer: int, scaling: float, window: int | None) -> Any:
        if fault == "a wrong scale":
            return attend(self, query, layer, scaling * 1.5, window)
        mask = self.inputs.segments[0].mask
        if mask is not None:
            mask[:, -mask.shape[0]] = True
        return attend(self, query, layer, scaling, window)

    monkeypatch.setattr(StepContext, "attend", wrong)
    with pytest.raises(ModelError, match="gives other results"):
        check.run()
