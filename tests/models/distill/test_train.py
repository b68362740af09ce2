"""Training: it learns, it ends when told to, it goes on where it stopped."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import LlamaForCausalLM

from resispec.models.base import ModelError
from resispec.models.distill.batches import Batch, batch_plan, load_batch
from resispec.models.distill.corpus import Document
from resispec.models.distill.features import FeatureStore, extract_features
from resispec.models.distill.head import HeadTrainee
from resispec.models.distill.initialise import initialise
from resispec.models.distill.loss import draft_loss
from resispec.models.distill.train import Trainer, TrainSettings
from resispec.models.head.module import HeadModule, LayerReader

QUIET = Console(quiet=True)
VOCAB_IDS = torch.arange(0, 24, 2)


def start(
    head: HeadModule,
    target: LlamaForCausalLM,
    store: FeatureStore,
    checkpoint: Path | None = None,
    **changes: Any,
) -> Trainer:
    embeddings = target.model.embed_tokens.weight.detach()
    initialise(head, store, embeddings, seed=0)
    settings: dict[str, Any] = {
        "steps": 60,
        "batch_tokens": 256,
        "warm_up_steps": 3,
        "learning_rate": 0.02,
    } | changes
    trainee = HeadTrainee(head, embeddings, VOCAB_IDS)
    return Trainer(trainee, target.lm_head.weight.detach(), TrainSettings(**settings), checkpoint)


def excess_loss(trainer: Trainer, store: FeatureStore) -> float:
    """Above that of the target's own states, in nats a position."""
    batch = load_batch(store, list(range(len(store))), torch.empty(0))
    with torch.no_grad():
        exact = batch.hidden[batch.learned]
        least = draft_loss(exact[None], exact, trainer.output_rows, torch.ones(1), 0.0)
        return float(trainer.batch_loss(batch, 3, 0.0) - least)


def test_a_short_run_lowers_the_loss(head: HeadModule, target: LlamaForCausalLM, store: FeatureStore) -> None:
    trainer = start(head, target, store)
    before = excess_loss(trainer, store)
    trainer.run(store, QUIET)
    assert trainer.step == 60
    assert excess_loss(trainer, store) < 0.9 * before


def test_the_start_beats_a_random_one(
    head: HeadModule, target: LlamaForCausalLM, store: FeatureStore
) -> None:
    trainee = HeadTrainee(head, target.model.embed_tokens.weight.detach(), VOCAB_IDS)
    random = Trainer(trainee, target.lm_head.weight.detach(), TrainSettings(steps=1))
    before = excess_loss(random, store)
    assert excess_loss(start(head, target, store), store) < 0.5 * before


def test_an_interrupted_run_ends_where_an_unbroken_one_does(
    head: HeadModule, target: LlamaForCausalLM, store: FeatureStore, tmp_path: Path
) -> None:
    start(head, target, store, steps=12).run(store, QUIET)
    unbroken = {name: value.clone() for name, value in head.state_dict().items()}

    trainer = start(head, target, store, tmp_path / "run.pt", steps=12, save_minutes=1e-9)
    update = trainer._update

    def interrupted(batch: Batch, done: float) -> None:
        if trainer.step == 7:
            raise KeyboardInterrupt
        update(batch, done)

    trainer._update = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.run(store, QUIET)
    again = start(head, target, store, tmp_path / "run.pt", steps=12)
    assert again.step == 7
    again.run(store, QUIET)
    for name, value in head.state_dict().items():
        torch.testing.assert_close(value, unbroken[name], rtol=0, atol=1e-6)


def test_a_head_learns_from_what_goes_into_layers(
    head: HeadModule, target: LlamaForCausalLM, documents: list[Document], tmp_path: Path
) -> None:
    """Of an interrupted run, too: the weights that read layers are in its checkpoint."""
    store = extract_features(target, documents, tmp_path / "store", QUIET, layers=(0, 1))
    reader = HeadModule(dataclasses.replace(head.config, target_layers=(0, 1)))
    trainer = start(reader, target, store, tmp_path / "run.pt", steps=40, save_minutes=1e-9)
    before = excess_loss(trainer, store)
    assert isinstance(reader.reader, LayerReader)
    assert reader.reader.proj.weight.abs().max() == 0
    trainer.run(store, QUIET)
    assert reader.reader.proj.weight.abs().max() > 0
    assert excess_loss(trainer, store) < 0.9 * before
    other = HeadModule(reader.config)
    start(other, target, store, tmp_path / "run.pt", steps=40)
    for name, value in reader.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


def test_a_checkpoint_of_another_run_is_refused(
    head: HeadModule, target: LlamaForCausalLM, store: FeatureStore, tmp_path: Path
) -> None:
    torch.save({"module": {}, "optimisers": []}, tmp_path / "run.pt")
    whole = (tmp_path / "run.pt").read_bytes()
    for content in (whole, whole[:-50], b"", b"something else"):
        (tmp_path / "run.pt").write_bytes(content)
        with pytest.raises(ModelError, match="no checkpoint of this run"):
            start(head, target, store, tmp_path / "run.pt")


def test_minutes_end_a_run(head: HeadModule, target: LlamaForCausalLM, store: FeatureStore) -> None:
    trainer = start(head, target, store, steps=None, minutes=0.5 / 60)
    trainer.run(store, QUIET)
    assert trainer.step > 0
    assert trainer.minutes >= 0.5 / 60


def test_divergence_is_an_error(head: HeadModule, target: LlamaForCausalLM, store: FeatureStore) -> None:
    trainer = start(head, target, store)
    with torch.no_grad():
        head.fuse.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="diverged at step 1"):
        trainer.run(store, QUIET)


@pytest.mark.parametrize("wrong", [{}, {"steps": 0}, {"minutes": -1.0}, {"steps": 1, "batch_tokens": 0}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(reversed(wrong), "steps or minutes")):
        TrainSettings(**wrong)


def test_a_plan_holds_every_document_once(store: FeatureStore) -> None:
    plans = [batch_plan(store, 100, seed) for seed in (0, 0, 1)]
    for plan in plans:
        assert sorted(document for batch in plan for document in batch) == list(range(len(store)))
        for batch in plan:
            assert len(batch) * int(store.documents[batch, 1].max()) <= 100
    assert plans[0] == plans[1] != plans[2]


def test_only_output_tokens_are_learned(store: FeatureStore) -> None:
    batch = load_batch(store, [3, 4], torch.empty(0))  # lengths 5, from the start, and 6, output from 2 on
    assert batch.learned.tolist() == [[True] * 4 + [False] * 2, [False, True, True, True, True, False]]
    assert batch.hidden[0, 5].abs().max() == 0


def test_acceptance_is_measured_with_every_checkpoint(
    head: HeadModule, target: LlamaForCausalLM, store: FeatureStore, tmp_path: Path
) -> None:
    trainer = start(head, target, store, tmp_path / "run.pt", steps=4, save_minutes=1e-9)
    measured: list[int] = []

    def acceptance() -> float:
        measured.append(trainer.step)
        return 0.5

    trainer.run(store, QUIET, acceptance)
    assert measured == [1, 2, 3, 4]
