"""`resispec distill`: from a target to a draft head for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from ..base import ModelError
from ..head.checkpoint import load_head, save_head
from ..head.config import HeadConfig
from ..head.fingerprint import check_head, fingerprint
from ..head.module import HeadModule
from ..load import load_causal, read_facts, resolve
from .card import TrainingRecord, model_card
from .corpus import Document, frequent_ids, read_corpus, split_held_out
from .evaluate import evaluate
from .features import extract_features
from .generate import write_corpus
from .initialise import initialise
from .prompts import builtin_prompts, prompts_from_file
from .settings import DistillSettings
from .train import Trainer, TrainSettings

__all__ = ["DistillSettings", "distill"]

_MAX_NEW_TOKENS = 256
_DEFAULT_ROPE_THETA = 10_000.0
_WORK_FILES = ("settings.json", "generated.jsonl", "training", "held-out", "training.pt")


def distill(settings: DistillSettings, console: Console) -> Path:
    """Train a draft head; returns the folder with its config, weights and model card.

    Text, hidden states and training each go on where they stopped when ``resume`` is set. Raises
    ModelError when the target or the data cannot be used, or when work of another run is in the way.
    """
    training = TrainSettings(steps=settings.steps, minutes=settings.minutes, seed=settings.seed)
    device = _device(settings.device)
    dtype = torch.float32 if settings.dtype == "float32" else torch.bfloat16
    _prepare_work(settings)
    folder = resolve(settings.target, offline=settings.offline)
    target, tokenizer = load_causal(folder, device=device, dtype=dtype, attn_implementation="sdpa")
    embeddings, output_matrix = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    _check_linear_logits(target, output_matrix)

    train_set, held_out_set = split_held_out(_documents(settings, target, tokenizer, console))
    train_store = extract_features(target, train_set, settings.work / "training", console, str(folder))
    held_out = extract_features(target, held_out_set, settings.work / "held-out", console, str(folder))
    vocab_ids = frequent_ids(train_set, settings.vocab)
    facts = read_facts(folder, target, tokenizer)
    # The folder of the default target is called by the model's name, a hash and a version.
    name = folder.name.rsplit("-", 2)[0] if settings.target == "default" else settings.target_name
    config = head_config(target, tokenizer, name, facts.max_positions, len(vocab_ids))
    module = HeadModule(config)
    if settings.start_from is None:
        initialise(module, train_store, embeddings, settings.seed)
    else:
        module.load_state_dict(earlier_head(settings.start_from, config, target, tokenizer))
    module.to(device)
    trainer = Trainer(module, embeddings, output_matrix[vocab_ids], training, settings.work / "training.pt")
    trainer.run(train_store, console)

    figures = evaluate(module, embeddings, output_matrix, vocab_ids, held_out, seed=settings.seed)
    record = TrainingRecord(
        command=settings.command,
        data=_data_line(settings),
        training_documents=len(train_set),
        training_tokens=len(train_store.tokens),
        held_out_documents=len(held_out_set),
        vocabulary_share=_covered(train_set, vocab_ids),
        steps=trainer.step,
        minutes=trainer.minutes,
        seed=settings.seed,
    )
    save_head(settings.out, module, vocab_ids)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    (settings.out / "README.md").write_text(model_card(config, record, figures, parameters))
    for depth, level in enumerate(figures, start=1):
        console.print(f"level {depth}: overlap {level.overlap:.3f}, top-4 {level.sampled_top4:.3f}")
    return settings.out


def earlier_head(folder: Path, config: HeadConfig, target: Any, tokenizer: Any) -> dict[str, Tensor]:
    """Weights, float32, of a head trained before, to train further; its draft vocabulary may be another.

    Raises ModelError when it belongs to another target or has other sizes than ``config``.
    """
    module, _ = load_head(folder, dtype=torch.float32)
    check_head(module.config, target, tokenizer)
    same = dataclasses.replace(module.config, draft_vocab_size=config.draft_vocab_size, target=config.target)
    if same != config:
        raise ModelError(f"the head in {folder} has other sizes than one for this target would have")
    return module.state_dict()


def head_config(
    target: Any, tokenizer: Any, name: str, max_positions: int, draft_vocab_size: int
) -> HeadConfig:
    """A head of the target's own sizes."""
    sizes = target.config
    size, heads = int(sizes.hidden_size), int(sizes.num_attention_heads)
    head_dim = int(getattr(sizes, "head_dim", None) or size // heads)
    width = getattr(sizes, "intermediate_size", None)
    return HeadConfig(
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=int(getattr(sizes, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        intermediate_size=int(width) if isinstance(width, int) else 8 * size // 3,
        rope_theta=_rope_theta(sizes),
        rms_norm_eps=1e-5,
        max_positions=max_positions,
        draft_vocab_size=draft_vocab_size,
        target=fingerprint(target, tokenizer, name),
    )


def _rope_theta(sizes: Any) -> float:
    """The target's, where it has one for all layers: its positions are on the scale of its contexts."""
    parameters = getattr(sizes, "rope_parameters", None)
    theta = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    return float(theta) if theta else _DEFAULT_ROPE_THETA


def _prepare_work(settings: DistillSettings) -> None:
    """Make the work folder, or make sure that the one there belongs to this run and may be continued."""
    # How long to train may change from one start to the next; what is trained may not.
    fixed = dataclasses.replace(settings, steps=None, minutes=None, resume=False, offline=False)
    description = json.dumps(dataclasses.asdict(fixed), default=str, indent=2)
    work, path = settings.work, settings.work / "settings.json"
    if work.exists() and any((work / name).exists() for name in _WORK_FILES):
        if not settings.resume:
            raise ModelError(f"{work} holds an earlier run: go on with --resume, or remove that folder")
        if not path.exists() or path.read_text() != description:
            raise ModelError(f"{work} belongs to a run with other settings ({path}): remove that folder")
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(description)


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
def _check_linear_logits(target: Any, output_matrix: Tensor) -> None:
    """A head reads the output matrix alone, so logits must be that product and nothing more."""
    ids = torch.arange(8, device=target.device)[None]
    hidden = target.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    logits = target(input_ids=ids, use_cache=False).logits.float()
    difference = (logits - (hidden @ output_matrix.T).float()).abs().max()
    if bool(difference > 0.02 * logits.abs().max()):
        raise ModelError(
            f"{type(target).__name__} scales, caps or shifts its logits, which a draft head cannot follow; "
            "serve it with a draft model, or with --draft none"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device is {name!r}; auto, cpu, cuda and cuda:N are known") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device is {name!r}, but no CUDA device is there; --device cpu works")
    return device


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
