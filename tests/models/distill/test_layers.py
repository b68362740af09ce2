"""A small model made of some of the target's layers: how it begins, learns, is saved and is served."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from resispec.models.base import ModelError
from resispec.models.distill.batches import load_batch
from resispec.models.distill.evaluate import evaluate
from resispec.models.distill.features import FeatureStore
from resispec.models.distill.layers import LayersTrainee, fewer_layers, layer_numbers
from resispec.models.distill.train import Trainer, TrainSettings

QUIET = Console(quiet=True)


def trainee(target: Any, *chosen: int) -> LayersTrainee:
    return LayersTrainee(fewer_layers(target, chosen), None, chosen, "tiny")


@pytest.mark.parametrize(
    ("of", "count", "chosen"), [(30, 1, (0,)), (30, 2, (0, 29)), (30, 4, (0, 10, 19, 29)), (3, 2, (0, 2))]
)
def test_layers_are_spread_evenly(of: int, count: int, chosen: tuple[int, ...]) -> None:
    assert layer_numbers(of, count) == chosen


@pytest.mark.parametrize("count", [0, 2, 3])
def test_as_many_layers_as_the_target_has_are_no_draft(count: int) -> None:
    with pytest.raises(ModelError, match=f"layers is {count}; the target has 2"):
        layer_numbers(2, count)


def test_with_all_layers_it_would_be_the_target(target: LlamaForCausalLM, store: FeatureStore) -> None:
    batch = load_batch(store, list(range(len(store))), torch.empty(0))
    with torch.no_grad():
        (states,) = trainee(target, 0, 1).states(batch, 1)
    learned = batch.learned
    torch.testing.assert_close(states[learned], batch.hidden[learned], rtol=0, atol=0.02)  # bfloat16 on disk


def test_only_its_layers_and_norms_are_trained(target: LlamaForCausalLM, store: FeatureStore) -> None:
    small = trainee(target, 1)
    before = {name: value.clone() for name, value in small.module.state_dict().items()}
    trainer = Trainer(small, target.lm_head.weight, TrainSettings(steps=3, batch_tokens=256))
    trainer.run(store, QUIET)
    changed = {name for name, value in small.module.state_dict().items() if not value.equal(before[name])}
    assert changed == before.keys() - {"model.embed_tokens.weight", "lm_head.weight"}
    assert small.module.get_output_embeddings().weight is target.lm_head.weight  # type: ignore[operator]


def test_it_learns(target: LlamaForCausalLM, store: FeatureStore) -> None:
    small = trainee(target, 0)
    (before,) = evaluate(small, target.lm_head.weight, store)
    settings = TrainSettings(steps=60, batch_tokens=256, warm_up_steps=3, learning_rate=0.01)
    Trainer(small, target.lm_head.weight, settings).run(store, QUIET)
    (after,) = evaluate(small, target.lm_head.weight, store)
    assert after.overlap > before.overlap + 0.03


def test_another_layout_and_tied_weights(store: FeatureStore) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=30, n_embd=16, n_layer=3, n_head=2, n_positions=64)
    target = GPT2LMHeadModel(config).requires_grad_(False).eval()
    small = trainee(target, 0, 2)
    batch = load_batch(store, [3, 4], torch.empty(0))
    assert small.states(batch, 1)[0].shape == (2, batch.tokens.shape[1], 16)
    trained = {name for name, p in small.module.named_parameters() if p.requires_grad}
    assert "transformer.h.1.mlp.c_fc.weight" in trained
    assert not trained & {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    target: Any = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=3, n_head=2, n_positions=64))
    target.transformer.h = torch.nn.Sequential(*target.transformer.h)
    with pytest.raises(ModelError, match="GPT2LMHeadModel keeps no list of its 3 layers"):
        fewer_layers(target, (0, 2))


def test_a_folder_appears_whole(
    target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoTokenizer:
        def save_pretrained(self, folder: Path) -> None:
            assert not (tmp_path / "draft").exists()
            raise OSError(28, "No space left on device", str(folder))

    small = LayersTrainee(fewer_layers(target, (0,)), NoTokenizer(), (0,), "tiny")
    with pytest.raises(ModelError, match=r"cannot write .*draft: No space left on device"):
        small.save(tmp_path / "draft")
    assert not list(tmp_path.iterdir())

    monkeypatch.setattr(NoTokenizer, "save_pretrained", lambda *_: None)
    small.save(tmp_path / "draft")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert again.config.num_hidden_layers == 1
    ids = torch.arange(8)[None]
    assert torch.equal(again(ids).logits, small.module(ids).logits)
