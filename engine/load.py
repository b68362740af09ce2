"""From a configuration to an engine that is ready to serve: finds, loads and checks the pair."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import psutil
import torch

from resispec.models.attention import ATTENTION_NAME, register_attention
from resispec.models.base import ModelError
from resispec.models.device import device_for, find_device
from resispec.models.draft_kind import DraftKind, draft_kind
from resispec.models.eagle.checkpoint import load_eagle
from resispec.models.head.checkpoint import load_head
from resispec.models.head.fingerprint import check_head
from resispec.models.load.causal import load_causal
from resispec.models.load.facts import read_facts
from resispec.models.load.resolve import check_folder, locate, resolve
from resispec.models.medusa import load_medusa
from resispec.models.pack import bound_kernel_cache
from resispec.models.pair import check_pair, usable_ids
from resispec.models.prepare.cache import cache_root

from .build import LoadedDraft, LoadedTarget, assemble
from .config import DEFAULT, DEFAULT_NAME, ConfigError, EngineConfig
from .engine import Engine
from .sources.factory import MEDUSA
from .tree import DRAFT

DEFAULT_HEAD = f"{DEFAULT_NAME}-head"


def build_engine(config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> Engine:
    """Load the pair and build its engine. clock: as of `assemble`. Raises ConfigError and ModelError."""
    bound_kernel_cache()
    root = cache_root()
    return assemble(
        config,
        *load_pair(config),
        cost_folder=root / "costs",
        compiled_folder=root / "compiled",
        clock=clock,
    )


def default_head() -> AbstractContextManager[Path]:
    """The folder of the default target's draft, for as long as the context lasts."""
    return as_file(files("resispec.models") / "assets" / DEFAULT_HEAD)


def load_pair(config: EngineConfig) -> tuple[LoadedTarget, LoadedDraft | None]:
    """Find, load and check the pair, and set torch's threads. Raises ConfigError and ModelError."""
    torch.set_num_threads(config.num_threads or psutil.cpu_count(logical=False) or 1)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    register_attention()
    folder = resolve(config.target, offline=config.offline)
    model, tokenizer = load_causal(folder, device=device, dtype=dtype, attn_implementation=ATTENTION_NAME)
    facts = read_facts(folder, model, tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{folder}: only fast tokenizers (tokenizer.json) are supported")
    notes: list[str] = []
    draft = None
    if DRAFT not in config.proposers and MEDUSA not in config.proposers:
        if config.draft not in (None, DEFAULT):
            raise ConfigError(
                f"draft is {config.draft!r}, but {DRAFT!r} is not among the proposers; add it, or use "
                "draft 'none'",
                "proposer",
            )
    elif config.draft == DEFAULT and config.target != DEFAULT:
        alone = f"only {', '.join(config.sources)} proposes" if config.sources else "nothing proposes"
        notes.append(
            f"No draft was given for this target, so {alone}; "
            "'resispec distill' makes a draft for any target."
        )
    elif config.draft is not None:
        draft = _load_draft(config, model, tokenizer, facts.max_positions, dtype)
    target = LoadedTarget(
        model=model,
        tokenizer=backend,
        path=str(folder),
        context=facts.max_positions,
        num_ids=usable_ids(tokenizer, _output_rows(model)),
        eos_token_ids=facts.eos_token_ids,
        generation_defaults=facts.generation_defaults,
        notes=tuple(notes),
    )
    return target, draft


def choose_device(name: str) -> torch.device:
    """Raises ConfigError for a device that is not there."""
    try:
        return find_device(name)
    except ModelError as error:
        raise ConfigError(str(error), "device") from error


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: what suits the device best. Raises ConfigError for a name that is not known."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name in known:
        return known[name]
    if name != "auto":
        raise ConfigError(f"dtype is {name!r}; use auto, {', '.join(known)}", "dtype")
    return device_for(device).default_dtype


def _load_draft(
    config: EngineConfig, target: Any, tokenizer: Any, context: int, dtype: torch.dtype
) -> LoadedDraft:
    assert config.draft is not None
    if config.draft == DEFAULT:
        with default_head() as folder:
            return _load_head(folder, target, tokenizer, context, dtype)
    folder = locate(config.draft, offline=config.offline)
    kind = draft_kind(folder)
    if kind is DraftKind.HEAD:
        return _load_head(folder, target, tokenizer, context, dtype)
    if kind is DraftKind.EAGLE:
        num_ids = usable_ids(tokenizer, _output_rows(target))
        module, vocab_ids, notes = load_eagle(folder, target, num_ids, dtype)
        notes += _context_note(module.max_positions, context)
        return LoadedDraft(module.max_positions, head=module, vocab_ids=vocab_ids, notes=notes)
    if kind is DraftKind.MEDUSA:
        return LoadedDraft(context, medusa=load_medusa(folder, target, dtype))
    check_folder(folder)
    device = target.device
    model, draft_tokenizer = load_causal(
        folder, device=device, dtype=dtype, attn_implementation=ATTENTION_NAME
    )
    positions = read_facts(folder, model, draft_tokenizer).max_positions
    report = check_pair(
        tokenizer,
        draft_tokenizer,
        target_rows=_output_rows(target),
        draft_rows=_output_rows(model),
        target_positions=context,
        draft_positions=positions,
    )
    return LoadedDraft(context=positions, model=model, notes=report.notes)


def _load_head(folder: Path, target: Any, tokenizer: Any, context: int, dtype: torch.dtype) -> LoadedDraft:
    module, vocab_ids = load_head(folder, target.device, dtype)
    check_head(module.config, target, tokenizer)
    positions = module.max_positions
    notes = _context_note(positions, context)
    return LoadedDraft(context=positions, head=module, vocab_ids=vocab_ids, notes=notes)


def _context_note(positions: int, context: int) -> tuple[str, ...]:
    """Where a head's context is shorter than the target's."""
    if positions >= context:
        return ()
    note = (
        f"The draft's context ends at {positions} tokens, the target's at {context}: "
        "longer sequences go on without speculation."
    )
    return (note,)


def _output_rows(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])
