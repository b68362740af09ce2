"""Joins loaded models into an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from resispec.models.base import StepModel
from resispec.models.causal import CausalModel
from resispec.models.compiled.compilation import Compilation
from resispec.models.compiled.state import NOT_COMPILED, NOT_NEEDED
from resispec.models.device import Device, Recorder, device_for
from resispec.models.fit import fit, lay_out
from resispec.models.fuse.native import can_go_native
from resispec.models.graphs import ReplayedModel
from resispec.models.head.base import StateHead
from resispec.models.head.step import HeadStepModel
from resispec.models.kernels import suits
from resispec.models.kv import SEGMENTS, KVMemory
from resispec.models.medusa import MedusaHeads

from .budget.base import TreeBudget
from .budget.controller import Controller, ControllerSettings
from .budget.costs import MeasuredCosts, reference_costs
from .budget.meter import SpeedMeter
from .config import ConfigError, EngineConfig
from .cost.keep import CostKeeper
from .cost.measure import Limits
from .cost.prefill import PrefillCosts
from .cost.start import Pair, cost_key, cost_path, start_costs
from .cost.table import CostTable, LearnedCosts
from .engine import Engine
from .kv.memory_manager import KVManager
from .memory import plan_memory
from .outputs import EngineInfo
from .proposers.base import Proposer
from .proposers.draft import DraftProposer
from .request import RequestError
from .runner.runner import Runner
from .scheduler import Scheduler, SchedulerConfig
from .sources.factory import MEDUSA, SOURCES
from .tree import DRAFT
from .verifiers.table import VERIFIERS, get, refused
from .weights import check_weights, settle_draft_weights


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target as it comes from disk."""

    model: Any  # transformers causal model, eval mode, final weights
    tokenizer: Tokenizer
    path: str  # folder with the tokenizer and the configuration
    context: int  # positions it can encode
    num_ids: int  # token ids below this exist in the tokenizer
    eos_token_ids: tuple[int, ...]
    generation_defaults: dict[str, float]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft: a head on the target's states, Medusa heads, or a model of its own. Exactly one is set."""

    context: int
    head: StateHead | None = None
    vocab_ids: torch.Tensor | None = None  # of a head: the target's ids of its logits; None: the same
    medusa: MedusaHeads | None = None
    model: Any = None
    notes: tuple[str, ...] = ()


def assemble(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    *,
    cost_folder: Path | None = None,
    compiled_folder: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """Join loaded models into an engine, which changes them: each can be joined once.

    cost_folder: where cost tables are kept between starts; None: no measurement, the steps must do.
    compiled_folder: where compiled layers are; needed with ``compile`` only.
    clock: seconds, by which requests and steps are timed.
    Raises ConfigError and ModelError.
    """
    model = target.model
    device = next(model.parameters()).device
    config = replace(config, proposers=_proposers(config, draft))
    check_weights(config, device, has_draft=draft is not None)
    _check_config(config)
    notes = (*target.notes, *(draft.notes if draft else ()))
    has_draft, medusa = draft is not None, draft.medusa if draft else None
    if medusa is not None:
        draft = None  # its heads are a source: nothing grows trees
    there = device_for(device)
    attentions = _attentions(config, there)
    fitted = fit(model, target.context, attentions)
    geometry, notes = fitted.geometry, notes + there.shortcomings + fitted.notes
    draft_weights = settle_draft_weights(config.draft_quantization, device, geometry.dtype)
    config = replace(config, draft_quantization=draft_weights)  # as what costs go by
    draft_geometry, draft_attention, draft_walk = None, fitted.attention, None
    if draft is not None and draft.head is not None:
        draft_geometry = draft.head.geometry(geometry.dtype)
        geometry = replace(geometry, hidden_size=draft_geometry.hidden_size)
        if not suits(fitted.attention, draft_geometry):
            draft_attention = SEGMENTS
    elif draft is not None:
        fitted_draft = fit(draft.model, draft.context, attentions)
        draft_geometry, draft_attention = fitted_draft.geometry, fitted_draft.attention
        draft_walk = fitted_draft.walk
        notes += fitted_draft.notes
    keep_hidden = draft is not None and draft.head is not None
    bytes_per_row = geometry.bytes_per_row(keep_hidden=keep_hidden)
    bytes_per_row += draft_geometry.bytes_per_row() if draft_geometry else 0
    if draft is not None or config.sources:
        _check_window(config, model, draft.model if draft is not None else None)
    tree_nodes = config.most_nodes if config.sources or draft is not None else 0
    plan = plan_memory(config, bytes_per_row, target.context, tree_nodes, device)

    replay = _Replay(there.recorder() if config.cuda_graphs else None, plan.num_rows)
    memory = KVMemory(
        geometry, replay.memory_rows, device, keep_hidden=keep_hidden, attention=fitted.attention
    )
    memories = [memory]
    tap = draft.head.tap(model) if draft is not None and draft.head is not None else None
    target_step = replay.model(CausalModel(model, memory, target.context, tap, fitted.walk), memory)
    proposer: Proposer | None = None
    if draft is not None and draft_geometry is not None:
        draft_memory = KVMemory(draft_geometry, replay.memory_rows, device, attention=draft_attention)
        memories.append(draft_memory)
        draft_step: HeadStepModel | CausalModel
        if draft.head is not None:
            draft_step = HeadStepModel(draft.head, draft.vocab_ids, model, draft_memory)
        else:
            draft_step = CausalModel(draft.model, draft_memory, draft.context, walk=draft_walk)
        draft_step.lay_out(draft_weights)
        draft_model = replay.model(draft_step, draft_memory)
        proposer = DraftProposer(draft_model, memory.states, target.num_ids, device)
    if medusa is not None:
        medusa.lay_out(draft_weights)
    # Last: the head takes its rows of the plain output matrix.
    goes_native = config.quantization != "int4" and can_go_native(model, coded=config.quantization == "int8")
    compiles = config.compile and not goes_native
    notes += lay_out(model, config.quantization, native=not compiles)

    costs = CostTable.guess(draft=proposer is not None)
    keep: Callable[[Callable[[], LearnedCosts]], CostKeeper] | None = None
    if cost_folder is not None:
        modules = [model, *([draft.model or draft.head] if draft is not None else [])]
        limits = Limits(
            num_rows=plan.num_rows,
            max_tokens=config.batched_tokens,
            max_requests=config.max_num_seqs,
            target_positions=target.context,
            draft_positions=draft.context if draft else 0,
        )
        pair = Pair(target_step, proposer, memories)
        key = cost_key(config, device, modules)
        costs = start_costs(cost_folder, key, pair, limits, device)
        keep = partial(CostKeeper, cost_path(cost_folder, key), key, costs)

    compilation = None
    status = NOT_NEEDED if config.compile else NOT_COMPILED
    if compiles:
        assert compiled_folder is not None, "compiled layers need a folder"
        spare = device_for(device).free_memory() - plan.num_rows * bytes_per_row  # its pages come when used
        compilation = Compilation(
            model, geometry, compiled_folder, threads=torch.get_num_threads(), spare_bytes=spare
        )

    eos_token_ids = tuple(token for token in target.eos_token_ids if 0 <= token < target.num_ids)
    kv = KVManager(plan.num_rows, prefix_caching=config.prefix_caching)
    step_costs = MeasuredCosts(costs, costs.learned)
    controller = Controller(
        ControllerSettings(
            max_step_nodes=config.max_step_nodes or there.step_nodes,
            baseline_probe_share=config.baseline_probe_share,
        ),
        step_costs,
        reference_costs(device.type),
    )
    prefill = PrefillCosts(costs)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.batched_tokens,
            max_prefill_seconds=config.max_prefill_ms / 1e3,
            max_model_len=plan.max_model_len,
            largest_tree=TreeBudget(config.most_nodes, config.most_depth),
            fixed_tree=_fixed_tree(config, device),
            draft_positions=draft.context if draft else 0,
            sources=bool(config.sources),
            draft_reads_target=keep_hidden,
        ),
        kv,
        controller,
        prefill,
    )
    runner = Runner(
        target_step,
        memories,
        proposer,
        costs,
        prefill,
        keeps_draft_rows=not keep_hidden,
        num_ids=target.num_ids,
        eos_token_ids=eos_token_ids,
        device=device,
        medusa=medusa,
    )
    notes += (plan.note,) if plan.note else ()
    refused_verifiers = refused(allow_inexact=config.allow_inexact)
    info = EngineInfo(
        target=config.target,
        draft=config.draft if has_draft else None,
        target_path=target.path,
        device=str(device),
        dtype=str(geometry.dtype).removeprefix("torch."),
        quantization=config.quantization,
        draft_quantization=draft_weights if has_draft else None,
        max_model_len=plan.max_model_len,
        max_num_seqs=config.max_num_seqs,
        vocab_size=target.num_ids,
        eos_token_ids=eos_token_ids,
        verifier=config.verifier,
        speculation=config.speculation,
        verifiers=tuple(sorted(VERIFIERS.keys() - refused_verifiers.keys())),
        proposers=config.proposers,
        max_tree_nodes=config.most_nodes,
        max_tree_depth=config.most_depth,
        kv_rows=plan.num_rows,
        kv_bytes_per_row=bytes_per_row,
        generation_defaults=target.generation_defaults,
        refused_verifiers=refused_verifiers,
        inexact_verifiers=tuple(
            sorted(n for n, v in VERIFIERS.items() if not v.exact and n not in refused_verifiers)
        ),
        attention=fitted.attention,
        notes=notes,
        compilation=compilation.status if compilation is not None else status,
    )
    meter = SpeedMeter(step_costs) if scheduler.config.speculates else None
    keeper = None if keep is None else keep(step_costs.learned)
    return Engine(
        info, target.tokenizer, kv, scheduler, runner, controller, meter, compilation, keeper, clock
    )


def _fixed_tree(config: EngineConfig, device: torch.device) -> TreeBudget:
    """What a request in the fixed mode gets that asks for nothing else."""
    nodes, depth = device_for(device).usual_tree
    return TreeBudget(config.max_tree_nodes or nodes, config.max_tree_depth or depth)


@dataclass(frozen=True, slots=True)
class _Replay:
    """How models step over the ``num_rows`` rows that requests may own."""

    recorder: Recorder | None
    num_rows: int

    @property
    def memory_rows(self) -> int:
        """One more for what pads recorded steps."""
        return self.num_rows + (self.recorder is not None)

    def model(self, step: CausalModel | HeadStepModel, memory: KVMemory) -> StepModel:
        if self.recorder is None:
            return step
        return ReplayedModel(step, memory, self.recorder, scratch_row=self.num_rows)


def _attentions(config: EngineConfig, device: Device) -> tuple[str, ...]:
    """Those to try, the best first. Raises ConfigError."""
    if config.attention == "auto":
        return device.attentions
    if config.attention not in device.attentions:
        known = ", ".join(("auto", *device.attentions))
        raise ConfigError(f"attention is {config.attention!r}; on {device.device} use {known}", "attention")
    return (config.attention,)


def _proposers(config: EngineConfig, draft: LoadedDraft | None) -> tuple[str, ...]:
    """Those there are; where the draft is Medusa heads, they are what ``draft`` means, too."""
    if draft is not None and draft.medusa is not None:
        return tuple(dict.fromkeys(MEDUSA if name == DRAFT else name for name in config.proposers))
    if MEDUSA in config.proposers:
        raise ConfigError("proposer 'medusa' needs Medusa heads; give their folder with --draft", "proposer")
    return tuple(name for name in config.proposers if name != DRAFT or draft is not None)


def _check_window(config: EngineConfig, *models: Any) -> None:
    """The attention's windows go by rows, which holds for trees less deep than the window is wide."""
    name = "max_tree_nodes" if config.sources else "max_tree_depth"  # known paths may be one long chain
    value = config.most_nodes if config.sources else config.most_depth
    for model in models:
        window = getattr(model.config, "sliding_window", None) if model is not None else None
        if window is not None and window <= value:
            raise ConfigError(
                f"{name} is {value}, but {type(model).__name__} has a sliding window "
                f"of {window} tokens; use a value below that",
                name,
            )


def _check_config(config: EngineConfig) -> None:
    for name in config.proposers:
        if name not in (DRAFT, *SOURCES):
            raise ConfigError(
                f"proposer {name!r} is unknown; known: {', '.join((DRAFT, *SOURCES))}", "proposer"
            )
    for name in ("max_num_seqs", "max_tree_nodes", "max_tree_depth"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be 1 or more", name)
    if not config.max_prefill_ms > 0:
        raise ConfigError(f"max_prefill_ms is {config.max_prefill_ms}; it must be above 0", "max_prefill_ms")
    if config.batched_tokens < config.tree_rows:
        raise ConfigError(
            f"max_num_batched_tokens is {config.batched_tokens}, but {config.max_num_seqs} requests with "
            f"their trees take {config.tree_rows} rows; use that or more, or lower max_num_seqs or "
            "max_tree_nodes",
            "max_num_batched_tokens",
        )
    try:
        get(config.verifier)
    except RequestError as error:
        raise ConfigError(error.message, "verifier") from error
    if (why := refused(allow_inexact=config.allow_inexact).get(config.verifier)) is not None:
        raise ConfigError(why, "verifier")
