"""From the settings to contenders that are ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

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

    yield (PLAIN,), plain
    if settings.draft is not None:
        yield tuple(name for name, _, _ in variants), speculative
    if settings.transformers:
        yield (TRANSFORMERS,), transformers


def _check_draft(engine: Engine) -> None:
    """An engine without its draft would be a second plain one under the wrong name."""
    if engine.info.draft is None:
        raise BenchError(" ".join(engine.info.notes) or "the engine runs without a draft")
