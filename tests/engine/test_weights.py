"""Drafts whose weights are rounded, and settings of weights that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from resispec.engine.build import LoadedDraft
from resispec.engine.config import ConfigError, EngineConfig
from resispec.engine.cost.start import cost_key
from resispec.engine.request import Request, SamplingParams
from resispec.engine.weights import check_weights, settle_draft_weights
from resispec.models.compiled.state import NOT_NEEDED
from resispec.models.fuse.layer import FusedLayer
from resispec.models.medusa import MedusaHeads
from resispec.models.native.products import native_products

CPU = torch.device("cpu")


def drafts(tiny: Any, kind: str) -> LoadedDraft:
    if kind == "model":
        return LoadedDraft(256, model=tiny.model(1))
    return LoadedDraft(256, medusa=MedusaHeads(2, 1, 32, tiny.vocabulary).requires_grad_(False).eval())


@pytest.mark.parametrize("kind", ["model", "medusa"])
def test_a_draft_in_8_bits_changes_no_text(tiny: Any, kind: str) -> None:
    """Its weights are rounded, the target's are not."""
    requests = [
        Request(str(i), (5 + i, 9, 60), SamplingParams(temperature=0.0, max_tokens=24)) for i in range(4)
    ]
    expected = tiny.run(tiny.engine(tiny.model(0)), requests).tokens
    draft = drafts(tiny, kind)
    engine = tiny.engine(tiny.model(0), draft, draft_quantization="int8")
    assert (engine.info.quantization, engine.info.draft_quantization) == ("none", "int8")
    rounded = draft.medusa if draft.medusa is not None else draft.model
    assert not [part for part in rounded.modules() if type(part) is torch.nn.Linear]
    ran = tiny.run(engine, requests)
    assert ran.tokens == expected
    assert sum(part.num_drafts for stats in ran.stats for part in stats.speculation) > 0


def test_what_a_draft_computes_with_by_itself(tiny: Any) -> None:
    """In 8 bits where kernels of our own multiply them; which it is costs are kept by."""
    quick = "none" if native_products() is None else "int8"
    assert tiny.engine(tiny.model(0)).info.draft_quantization is None
    assert tiny.engine(tiny.model(0), drafts(tiny, "model")).info.draft_quantization == "none"  # in float32
    for setting, expected in (("auto", quick), ("none", "none"), ("int8", "int8")):
        draft = LoadedDraft(256, model=tiny.model(1, hidden_size=64).bfloat16())
        target = tiny.model(0).bfloat16()
        engine = tiny.engine(target, draft, draft_quantization=setting)
        assert engine.info.draft_quantization == expected
    keys = {cost_key(EngineConfig("a", draft_quantization=name), CPU, []) for name in ("none", "int8")}
    assert len(keys) == 2


@pytest.mark.skipif(native_products() is None, reason="no kernels for this processor were built")
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_whole_layers_are_not_compiled(tiny: Any, quantization: str) -> None:
    """In kernels of our own they are quicker, in 8 bits too, and the server says so."""
    target = tiny.model(0, hidden_size=64, intermediate_size=128).bfloat16()
    engine = tiny.engine(target, quantization=quantization, compile=True)
    assert engine.info.compilation == NOT_NEEDED
    layers = [part for part in target.modules() if isinstance(part, FusedLayer)]
    assert len(layers) == 2
    assert all(layer.native is not None for layer in layers)


@pytest.mark.parametrize(
    ("setting", "has_draft", "message"),
    [("int4", True, "'int4'.*auto, none, int8"), ("int8", False, "no draft is used.*auto")],
)
def test_bad_draft_quantization(tiny: Any, setting: str, has_draft: bool, message: str) -> None:
    draft = drafts(tiny, "model") if has_draft else None
    with pytest.raises(ConfigError, match=message) as caught:
        tiny.engine(tiny.model(0), draft, draft_quantization=setting)
    assert caught.value.setting == "draft_quantization"


def test_a_gpu_rounds_no_weights() -> None:
    gpu = torch.device("cuda")
    wanted = EngineConfig("a", quantization="int8"), EngineConfig("a", draft_quantization="int8")
    for config, name in zip(wanted, ("quantization", "draft_quantization"), strict=True):
        with pytest.raises(ConfigError, match=f"^{name} is int8.*CPU only.* none on cuda") as caught:
            check_weights(config, gpu, has_draft=True)
        assert caught.value.setting == name
    check_weights(EngineConfig("a"), gpu, has_draft=True)
    assert settle_draft_weights("auto", gpu, torch.bfloat16) == "none"
