"""From the settings to contenders that are ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from resispec.models.compiled.state import CompileState
from resispec.models.draft_kind import DraftKind, draft_kind
from resispec.models.head.untrained import write_untrained
from resispec.models.load.causal import load_causal
from resispec.models.load.resolve import locate

from ..config import DEFAULT, EngineConfig
from ..engine import Engine
from ..load import build_engine, default_head
from ..request import FormHelp, SpeculationMode, SpeculationParams
from .contenders import PLAIN, SPECULATIVE, TRANSFORMERS, BenchError, Contender, EngineContender
from .settings import NO_HELP, BenchSettings
from .turns import Stopwatch

Loader = Callable[[], list[Contender]]


def loaders(
    settings: BenchSettings,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int,
    tell: Callable[[str], object],
) -> Iterator[tuple[tuple[str, ...], Loader]]:
    """What to load, each with the names of the contenders that come of it.

    Each has weights of its own, as it would alone: one target changes when it is packed for an engine.
    tell: takes what is worth knowing of an engine.
    """
    variants = list(speculations(settings))

    def plain(name: str = PLAIN, attention: str = "auto") -> list[Contender]:
        clock = Stopwatch()
        config = settings.engine_config(max_model_len, speculates=False, attention=attention)
        engine = _engine(config, clock, tell)
        return [EngineContender(name, engine, clock=clock, simulates=settings.simulate)]

    def speculative() -> list[Contender]:
        clock = Stopwatch()
        config = settings.engine_config(max_model_len, speculates=True)
        with draft_source(settings) as draft:
            engine = _engine(replace(config, draft=draft), clock, tell)
        if settings.draft is not None:
            _check_draft(engine)
        # Trees that are named are meant, also where many run and smaller ones would be chosen.
        seeds = bool(settings.trees or settings.tree)
        return [
            EngineContender(name, engine, wanted, clock=clock, seeds=seeds, simulates=settings.simulate)
            for name, wanted in variants
        ]

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
    for attention in settings.attentions:
        name = f"{PLAIN} {attention}"
        yield (name,), partial(plain, name, attention)
    if variants:
        yield tuple(name for name, _ in variants), speculative
    if settings.transformers:
        yield (TRANSFORMERS,), transformers
    if settings.assisted:
        yield (f"{TRANSFORMERS} assisted",), assisted


def speculations(settings: BenchSettings) -> Iterator[tuple[str, SpeculationParams]]:
    """The kinds of speculation to compare, each with its contender's name."""
    for tree in settings.trees:
        wanted = SpeculationParams(mode=SpeculationMode.FIXED, max_nodes=tree.nodes, max_depth=tree.depth)
        yield f"{SPECULATIVE} {tree}", wanted
    mode = SpeculationMode.FIXED if settings.tree else None  # a tree that is named is meant
    for verifier in settings.verifiers:
        yield f"{SPECULATIVE} {verifier}", SpeculationParams(verifier=verifier, mode=mode)
    # With modes to compare, one set of proposers is what they have, and nothing to compare.
    for names in settings.proposers if len(settings.proposers) > 1 or not settings.modes else ():
        yield f"{SPECULATIVE} {names}", SpeculationParams(proposers=tuple(names.split("+")), mode=mode)
    for name in settings.modes:
        yield f"{SPECULATIVE} {name}", SpeculationParams(mode=SpeculationMode(name))
    for names in settings.forms:
        helps = frozenset(FormHelp(name) for name in names.split("+") if name != NO_HELP)
        yield f"{SPECULATIVE} {names}", SpeculationParams(mode=mode, form=helps)
    if not settings.has_variants and settings.draft is not None:
        yield SPECULATIVE, SpeculationParams(mode=mode)


def draft_folder(settings: BenchSettings) -> Path | None:
    """Where the draft's weights lie, if it is a model that transformers can draft with: a head is none."""
    if settings.draft in (None, DEFAULT):
        return None
    folder = locate(settings.draft, offline=settings.offline)
    return folder if draft_kind(folder) is DraftKind.MODEL else None


def _engine(config: EngineConfig, clock: Stopwatch, tell: Callable[[str], object]) -> Engine:
    """An engine that runs as it is going to. Raises BenchError where it cannot be compiled as asked."""
    engine = build_engine(config, clock)
    engine.settle()
    status = engine.info.compilation
    if status.state is CompileState.FAILED or (config.compile and status.state is CompileState.OFF):
        raise BenchError(status.note)
    if status.note:
        tell(status.note)
    return engine


@contextmanager
def draft_source(settings: BenchSettings) -> Iterator[str | None]:
    """The draft to load. Raises ModelError where there is no head whose untrained like could be made."""
    if not settings.untrained or settings.draft is None:
        yield settings.draft
        return
    with ExitStack() as stack:
        if settings.draft == DEFAULT:
            trained = stack.enter_context(default_head())
        else:
            trained = locate(settings.draft, offline=settings.offline)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        write_untrained(trained, folder)
        yield str(folder)


def _check_draft(engine: Engine) -> None:
    """An engine without its draft would be a second plain one under the wrong name."""
    if engine.info.draft is None:
        raise BenchError(" ".join(engine.info.notes) or "the engine runs without a draft")
