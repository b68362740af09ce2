"""From the settings to contenders that are ready to run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from resispec.models.head.config import MODEL_TYPE as HEAD_TYPE
from resispec.models.load.causal import load_causal
from resispec.models.load.resolve import resolve

from ..config import DEFAULT
from ..engine import Engine
from ..load import build_engine
from .contenders import PLAIN, SPECULATIVE, TRANSFORMERS, BenchError, Contender, EngineContender
from .settings import BenchSettings, Tree

Loader = Callable[[], list[Contender]]


def loaders(
    settings: BenchSettings, folder: Path, device: torch.device, dtype: torch.dtype, max_model_len: int
) -> Iterator[tuple[tuple[str, ...], Loader]]:
    """What to load, each with the names of the contenders that come of it.

    Each has weights of its own, as it would alone: one target changes when it is packed for an engine.
    """
    variants: list[tuple[str, Tree | None, str | None]] = [
        *((f"{SPECULATIVE} {tree}", tree, None) for tree in settings.trees),
        *((f"{SPECULATIVE} {verifier}", None, verifier) for verifier in settings.verifiers),
    ] or [(SPECULATIVE, None, None)]

    def plain() -> list[Contender]:
        return [EngineContender(PLAIN, build_engine(settings.engine_config(None, max_model_len)))]

    def speculative() -> list[Contender]:
        engine = build_engine(settings.engine_config(settings.draft, max_model_len))
        _check_draft(engine)
        return [EngineContender(name, engine, tree, verifier) for name, tree, verifier in variants]

    def transformers() -> list[Contender]:
        from .transformers_contender import TransformersContender

        return [TransformersContender.load(folder, device, dtype)]

    def assisted() -> list[Contender]:
        from .transformers_contender import TransformersContender

        draft = draft_folder(settings)
        model = TransformersContender.load(folder, device, dtype)
        if draft is None:
            return [model.assisted(None)]
        return [model.assisted(load_causal(draft, device=device, dtype=dtype, attn_implementation="sdpa")[0])]

    yield (PLAIN,), plain
    if settings.draft is not None:
        yield tuple(name for name, _, _ in variants), speculative
    if settings.transformers:
        yield (TRANSFORMERS,), transformers
    if settings.assisted:
        yield (f"{TRANSFORMERS} assisted",), assisted


def draft_folder(settings: BenchSettings) -> Path | None:
    """Where the draft's weights lie, if it is a model that transformers can draft with: a head is none."""
    if settings.draft in (None, DEFAULT):
        return None
    folder = resolve(settings.draft, offline=settings.offline)
    return None if json.loads((folder / "config.json").read_text()).get("model_type") == HEAD_TYPE else folder


def _check_draft(engine: Engine) -> None:
    """An engine without its draft would be a second plain one under the wrong name."""
    if engine.info.draft is None:
        raise BenchError(" ".join(engine.info.notes) or "the engine runs without a draft")
