"""The walk through a fused model gives what the model gives, or is not taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaModel

from resispec.models.base import Segment, StepInputs
from resispec.models.causal import CausalModel, chunk_inputs
from resispec.models.fit import Fitted, fit, lay_out
from resispec.models.head.tap import StateTap
from resispec.models.kv import KVMemory
from resispec.models.walk import Walk

CPU = torch.device("cpu")
IDS = [3, 50, 99, 7, 7, 120, 64, 31]


def sibling_inputs() -> StepInputs:
    """Two candidates behind the chunk of `IDS`, which do not see each other; the second one's logits."""
    mask = torch.eye(2, dtype=torch.bool)
    return StepInputs(
        token_ids=torch.tensor([9, 11]),
        positions=torch.tensor([8, 8]),
        rows=torch.tensor([8, 9]),
        segments=(Segment(0, 2, 0, 10, mask),),
        logits_index=torch.tensor([1]),
    )


def results(model: Any, fitted: Fitted, walk: Walk | None) -> list[Tensor]:
    """Logits, last states and the states that a tap took, of a chunk and of two candidates behind it."""
    memory = KVMemory(fitted.geometry, 32, CPU)
    tap = StateTap(model, [0, 1], lambda last, below: torch.cat([last, below], dim=-1))
    step_model = CausalModel(model, memory, 256, walk=walk)
    found: list[Tensor] = []
    for inputs in (chunk_inputs(IDS, 0, CPU), sibling_inputs()):
        outputs = step_model.forward(inputs)
        found += [outputs.logits, tap.join(tap.take(outputs.hidden))]
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "phi3"])
def test_a_walk_gives_the_very_numbers_of_the_model(tiny: Any, family: str) -> None:
    model = tiny.model(0, family)
    fitted = fit(model, 256)
    assert fitted.walk is not None
    for walked, run in zip(results(model, fitted, fitted.walk), results(model, fitted, None), strict=True):
        assert torch.equal(walked, run)


def test_a_walk_goes_through_the_weights_as_they_are_laid_out(tiny: Any) -> None:
    model = tiny.model(0)
    fitted = fit(model, 256)
    before = results(model, fitted, fitted.walk)
    lay_out(model, "int8")
    after, run = results(model, fitted, fitted.walk), results(model, fitted, None)
    assert not torch.equal(before[0], after[0])
    assert all(torch.equal(one, other) for one, other in zip(after, run, strict=True))


@pytest.mark.parametrize("family", ["gemma3_text", "gpt2"])
def test_a_model_with_other_parts_is_not_walked_through(tiny: Any, family: str) -> None:
    assert fit(tiny.model(0, family), 256).walk is None


class _Scaled(LlamaModel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state * 2
        return output


class _Capped(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.tanh()
        return output


def test_a_model_that_does_more_around_its_parts_is_not_walked_through(tiny: Any) -> None:
    scaled, capped = tiny.model(0), tiny.model(0)
    scaled.get_decoder().__class__ = _Scaled
    capped.__class__ = _Capped
    assert fit(scaled, 256).walk is None
    assert fit(capped, 256).walk is None
