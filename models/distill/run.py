"""`resispec distill`: from a target to a draft for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from ..base import ModelError
from ..device import find_device
from ..files import write_whole
from ..head.module import HeadModule
from ..load import load_causal, read_facts, resolve
from .base import Trainee
from .card import TrainingRecord, licence_of, model_card
from .corpus import Document, frequent_ids, read_corpus, split_held_out
from .evaluate import evaluate
from .features import FeatureStore, extract_features
from .generate import write_corpus
from .head import HeadTrainee, begin_as, earlier_head, head_config
from .initialise import initialise
from .layers import LayersTrainee, fewer_layers, layer_numbers
from .prompts import builtin_prompts, prompts_from_file
from .settings import HEAD, DistillSettings
from .train import Trainer, TrainSettings

__all__ = ["DistillSettings", "distill"]

_MAX_NEW_TOKENS = 256
_SHOWN_POSITIONS = 1024  # of the held-out text, for the figure that is shown while training
_WORK_FILES = ("settings.json", "generated.jsonl", "training", "held-out", "training.pt")


def distill(settings: DistillSettings, console: Console) -> Path:
    """Train a draft; returns the folder with its config, weights and model card.

    Text, hidden states and training each go on where they stopped when ``resume`` is set. Raises
    ModelError when the target or the data cannot be used, when work of another run is in the way, or
    when the disk is full.
    """
    training = TrainSettings(
        steps=settings.steps,
        minutes=settings.minutes,
        learning_rate=settings.highest_rate,
        seed=settings.seed,
        save_minutes=settings.save_minutes,
    )
    device = find_device(settings.device)
    dtype = torch.float32 if settings.dtype == "float32" else torch.bfloat16
    _prepare_work(settings)
    folder = resolve(settings.target, offline=settings.offline)
    target, tokenizer = load_causal(folder, device=device, dtype=dtype, attn_implementation="sdpa")
    output_matrix = _output_matrix(target)

    train_set, held_out_set = split_held_out(_documents(settings, target, tokenizer, console))
    train_store, held_out = (
        extract_features(
            target, documents, settings.work / name, console, str(folder), settings.target_layers
        )
        for documents, name in ((train_set, "training"), (held_out_set, "held-out"))
    )
    make = _head if settings.kind == HEAD else _small_model
    trainee = make(settings, folder, target, tokenizer, train_set, train_store)
    trainee.module.to(device)
    trainer = Trainer(trainee, output_matrix, training, settings.work / "training.pt")

    def acceptance() -> float:
        return evaluate(trainee, output_matrix, held_out, _SHOWN_POSITIONS, settings.seed)[0].overlap

    trainer.run(train_store, console, acceptance)

    figures = evaluate(trainee, output_matrix, held_out, seed=settings.seed)
    record = TrainingRecord(
        command=settings.command,
        data=_data_line(settings),
        training_documents=len(train_set),
        training_tokens=len(train_store.tokens),
        held_out_documents=len(held_out_set),
        vocabulary_share=_covered(train_set, trainee.vocab_ids),
        steps=trainer.step,
        minutes=trainer.minutes,
        seed=settings.seed,
        licence=licence_of(settings.target, folder),
    )
    card = model_card(trainee.describe(), record, figures)
    trainee.save(settings.out)
    write_whole(settings.out / "README.md", card)
    for depth, level in enumerate(figures, start=1):
        console.print(f"level {depth}: overlap {level.overlap:.3f}, top-4 {level.sampled_top4:.3f}")
    return settings.out


def _head(
    settings: DistillSettings,
    folder: Path,
    target: Any,
    tokenizer: Any,
    documents: list[Document],
    store: FeatureStore,
) -> Trainee:
    vocab_ids = frequent_ids(documents, settings.draft_vocab)
    facts = read_facts(folder, target, tokenizer)
    earlier, width = None, settings.intermediate_size
    if settings.start_from is not None:
        earlier = earlier_head(settings.start_from, target, tokenizer)
        width = width or earlier.config.intermediate_size
    config = head_config(
        target,
        tokenizer,
        _name(settings, folder),
        facts.max_positions,
        len(vocab_ids),
        settings.target_layers,
        width,
    )
    module, embeddings = HeadModule(config), target.get_input_embeddings().weight
    initialise(module, store, embeddings, settings.seed)
    if earlier is not None:
        begin_as(module, earlier)
    return HeadTrainee(module, embeddings, vocab_ids)


def _small_model(
    settings: DistillSettings,
    folder: Path,
    target: Any,
    tokenizer: Any,
    documents: list[Document],  # noqa: ARG001  it drafts every token
    store: FeatureStore,  # noqa: ARG001  it starts as the target's own layers
) -> Trainee:
    chosen = layer_numbers(int(target.config.num_hidden_layers), settings.num_layers)
    return LayersTrainee(fewer_layers(target, chosen), tokenizer, chosen, _name(settings, folder))


def _name(settings: DistillSettings, folder: Path) -> str:
    """The target's; the folder of the default one is called by its name, a hash and a version."""
    return folder.name.rsplit("-", 2)[0] if settings.target == "default" else settings.target_name


def _prepare_work(settings: DistillSettings) -> None:
    """Make the work folder, or make sure that the one there belongs to this run and may be continued."""
    # How long to train may change from one start to the next; what is trained may not.
    free = ("steps", "minutes", "save_minutes", "resume", "offline")
    fixed = {name: value for name, value in dataclasses.asdict(settings).items() if name not in free}
    description = json.dumps(fixed, default=str, indent=2)
    work, path = settings.work, settings.work / "settings.json"
    if work.exists() and any((work / name).exists() for name in _WORK_FILES):
        if not settings.resume:
            raise ModelError(f"{work} holds an earlier run: go on with --resume, or remove that folder")
        if not path.exists() or path.read_text() != description:
            raise ModelError(f"{work} belongs to a run with other settings ({path}): remove that folder")
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the folder {work}: {error.strerror}") from error
    write_whole(path, description)


def _documents(settings: DistillSettings, target: Any, tokenizer: Any, console: Console) -> list[Document]:
    paths = list(settings.data)
    if settings.tokens_to_write:
        prompts = settings.prompts
        lines = prompts_from_file(prompts, settings.seed) if prompts else builtin_prompts(settings.seed)
        written = settings.work / "generated.jsonl"
        write_corpus(
            target,
            tokenizer,
            lines,
            settings.tokens_to_write,
            written,
            seed=settings.seed,
            max_new_tokens=min(_MAX_NEW_TOKENS, settings.max_tokens),
            console=console,
        )
        paths.append(written)
    rows = target.get_output_embeddings().weight.shape[0]
    return read_corpus(paths, tokenizer, rows, settings.max_tokens)


@torch.inference_mode()
def _output_matrix(target: Any) -> Tensor:
    """What reads the target's last hidden states. Raises ModelError where they cannot be had, or where
    logits are not that product and nothing more: a draft is compared by it alone.
    """
    name, ids = type(target).__name__, torch.arange(8, device=target.device)[None]
    layer = target.get_output_embeddings()
    hidden = getattr(target.get_decoder()(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if not isinstance(hidden, Tensor) or not isinstance(getattr(layer, "weight", None), Tensor):
        raise ModelError(
            f"{name} gives no access to its hidden states and its output matrix, which a draft is trained on"
        )
    matrix: Tensor = layer.weight
    logits = target(input_ids=ids, use_cache=False).logits.float()
    difference = (logits - (hidden @ matrix.T).float()).abs().max()
    if bool(difference > 0.02 * logits.abs().max()):
        raise ModelError(
            f"{name} scales, caps or shifts its logits, which the training of a draft "
            "cannot follow; serve it with a draft model of its family, or with --draft none"
        )
    return matrix


def _covered(documents: list[Document], vocab_ids: Tensor) -> float:
    known = set(vocab_ids.tolist())
    tokens = [token_id for document in documents for token_id in document.token_ids[document.output_start :]]
    return sum(token_id in known for token_id in tokens) / len(tokens)


def _data_line(settings: DistillSettings) -> str:
    parts = [path.name for path in settings.data]
    if settings.tokens_to_write:
        source = settings.prompts.name if settings.prompts else "built-in prompts"
        parts.append(f"{settings.tokens_to_write} tokens written by the target after {source}")
    return ", ".join(parts)
