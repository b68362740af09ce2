"""What a folder given as a draft is taken for, from the folder to answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from resispec.engine.build import assemble
from resispec.engine.config import ConfigError, EngineConfig
from resispec.engine.load import load_pair
from resispec.engine.request import Request, SamplingParams, SpeculationMode
from resispec.models.base import ModelError
from resispec.models.draft_kind import DraftKind, draft_kind

FIXED = SpeculationMode.FIXED  # trees whatever they cost: the machine may be busy


def config(target: Path, draft: Path | None, **changes: Any) -> EngineConfig:
    values: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 64, "num_threads": 1}
    return EngineConfig(str(target), draft=str(draft) if draft else None, **(values | changes))


@pytest.fixture
def medusa(tmp_path: Path) -> Path:
    """Two heads of one block for the target's 40 tokens."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for head in range(2):
        tensors[f"{head}.0.linear.weight"] = torch.randn(32, 32, generator=generator)
        tensors[f"{head}.0.linear.bias"] = torch.randn(32, generator=generator)
        tensors[f"{head}.1.weight"] = torch.randn(40, 32, generator=generator)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    return tmp_path


def test_medusa_heads_answer_with_the_targets_own_text(
    medusa: Path, target: LlamaForCausalLM, target_folder: Path
) -> None:
    """Nothing but the folder is named: the heads take the place of the draft among the proposers."""
    settings = config(
        target_folder, medusa, proposers=("draft", "ngram"), max_tree_nodes=8, speculation=FIXED
    )
    engine = assemble(settings, *load_pair(settings))
    assert (engine.info.draft, engine.info.proposers) == (str(medusa), ("medusa", "ngram"))
    engine.add(Request("a", (3, 1, 4), SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)))
    tokens: list[int] = []
    counts: dict[str, int] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            tokens += output.token_ids
            if output.metrics is not None and output.metrics.speculation is not None:
                counts = {count.source: count.num_proposed for count in output.metrics.speculation.by_source}
    ids = target.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert tokens == ids[0, 3:].tolist()
    assert counts["medusa"] > 0


def test_heads_that_are_not_asked_for(medusa: Path, target_folder: Path) -> None:
    settings = config(target_folder, medusa, proposers=("ngram",))
    with pytest.raises(ConfigError, match="is not among the proposers"):
        load_pair(settings)


def test_heads_that_are_asked_for_and_not_given(target_folder: Path) -> None:
    settings = config(target_folder, None, proposers=("medusa", "ngram"))
    with pytest.raises(ConfigError, match="needs Medusa heads; give their folder with --draft"):
        assemble(settings, *load_pair(settings))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"model_type": "resispec-head"}, DraftKind.HEAD),
        ({"speculators_model_type": "anything"}, DraftKind.EAGLE),
        ({"draft_vocab_size": 32000}, DraftKind.EAGLE),
        ({"medusa_num_heads": 3}, DraftKind.MEDUSA),
        ({"model_type": "llama"}, DraftKind.MODEL),
        ([], DraftKind.MODEL),
        (None, DraftKind.MODEL),
    ],
)
def test_kinds(content: object, kind: DraftKind, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    assert draft_kind(tmp_path) is kind


def test_a_folder_that_is_nothing_of_all_this(target_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no weights"):
        load_pair(config(target_folder, tmp_path))
