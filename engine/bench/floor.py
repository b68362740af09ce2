"""One stream's step against the memory: what a token must read, over how fast memory is copied."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from rich.console import Console
from tokenizers import Tokenizer, models

from ..build import LoadedTarget, assemble
from ..config import EngineConfig
from ..engine import Engine
from ..load import choose_device, choose_dtype, load_pair
from ..request import Request, SamplingParams
from .bandwidth import copy_bandwidth
from .contenders import BenchError
from .machine import Machine, describe_machine
from .settings import FloorSettings
from .shapes import SHAPES
from .summary import Spread, spread_of
from .tables import print_table, to_json, write_markdown

_WARM_UP = 4  # steps before any is counted
_HEADINGS = (
    "target",
    "GB/s",
    "weights, MB",
    "KV, MB",
    "floor, ms",
    "forward, ms",
    "step, ms",
    "x floor",
)


@dataclass(frozen=True, slots=True)
class _Repeat:
    """Seconds, and bytes a second."""

    bandwidth: float
    floor: float
    forward: float
    step: float


@dataclass(frozen=True, slots=True)
class FloorReport:
    """Medians of the steps, spread over the repeats. The memory's speed is taken anew in each."""

    machine: Machine
    target: str
    dtype: str
    attention: str
    context: int
    steps: int
    repeats: int
    weight_bytes: int  # that a step reads
    kv_bytes: int
    bandwidth: Spread  # bytes a second, read and written, of a copy
    floor_ms: Spread
    forward_ms: Spread
    step_ms: Spread  # from one token to the next, the host's work included
    ratio: Spread  # of the step over the floor

    @property
    def conditions(self) -> tuple[str, ...]:
        lines = [
            f"Machine: {self.machine}.",
            f"{self.dtype}, attention {self.attention}, one plain stream after {self.context} tokens.",
            f"Medians of {self.steps} steps and {self.repeats} repeats, from lowest to highest in brackets.",
        ]
        return (*lines, self.machine.warning) if self.machine.warning else tuple(lines)


def bench_floor(settings: FloorSettings, console: Console) -> FloorReport:
    """Raises ConfigError, ModelError, and BenchError where the context is too short for the steps."""
    device = choose_device(settings.device)
    machine = describe_machine(device)
    engine, name, weight_bytes = _load(settings, device)
    context = settings.context
    if engine.info.max_model_len < context + settings.steps + _WARM_UP + 1:
        raise BenchError(
            f"the target's {engine.info.max_model_len} tokens do not hold the steps; ask for fewer"
        )
    read = weight_bytes + engine.info.kv_bytes_per_row * (context + _WARM_UP + settings.steps // 2)
    repeats = []
    for repeat in range(settings.repeats):
        console.print(f"{name}, repeat {repeat + 1}", style="dim")
        bandwidth = copy_bandwidth(device)
        timed = list(_steps(engine, settings, repeat))
        step, forward = median(step for step, _ in timed), median(forward for _, forward in timed)
        repeats.append(_Repeat(bandwidth, read / bandwidth, forward, step))
    return FloorReport(
        machine=machine,
        target=name,
        dtype=engine.info.dtype,
        attention=engine.info.attention,
        context=context,
        steps=settings.steps,
        repeats=settings.repeats,
        weight_bytes=weight_bytes,
        kv_bytes=read - weight_bytes,
        bandwidth=spread_of(one.bandwidth for one in repeats),
        floor_ms=spread_of(1e3 * one.floor for one in repeats),
        forward_ms=spread_of(1e3 * one.forward for one in repeats),
        step_ms=spread_of(1e3 * one.step for one in repeats),
        ratio=spread_of(one.step / one.floor for one in repeats),
    )


def _load(settings: FloorSettings, device: torch.device) -> tuple[Engine, str, int]:
    """The engine, what its target is called, and the bytes of weights that a step reads."""
    config = EngineConfig(
        settings.target,
        device=settings.device,
        dtype=settings.dtype,
        attention=settings.attention,
        cuda_graphs=settings.cuda_graphs,
        max_num_seqs=1,
        max_model_len=settings.context + settings.steps + _WARM_UP + 16,
        prefix_caching=False,
        num_threads=settings.num_threads,
        offline=settings.offline,
    )
    torch.set_num_threads(settings.num_threads or psutil.cpu_count(logical=False) or 1)
    if settings.shape is None:
        target, _ = load_pair(config)
        name = settings.target
    else:
        dtype = choose_dtype(settings.dtype, device)
        assert config.max_model_len is not None
        model = random_model(SHAPES[settings.shape], config.max_model_len, device, dtype)
        vocabulary = int(model.config.vocab_size)
        # Nothing is encoded, and what is decoded is not looked at.
        tokenizer = Tokenizer(models.BPE())
        target = LoadedTarget(model, tokenizer, "", config.max_model_len, vocabulary, (), {})
        name = f"{settings.shape}, random weights"
    read = weights_read(target.model)
    return assemble(config, target, None), name, read


def random_model(shape: Mapping[str, Any], context: int, device: torch.device, dtype: torch.dtype) -> Any:
    """A Llama of a shape, made on ``device``, in evaluation mode."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**shape, max_position_embeddings=context)
    with torch.device(device):
        model: Any = LlamaForCausalLM._from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def weights_read(model: Any) -> int:
    """Bytes of all weights, but for an embedding that is not the output matrix too: a token reads a row."""
    total = int(sum(weight.numel() * weight.itemsize for weight in model.parameters()))
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if embedding.data_ptr() == output.data_ptr():
        return total
    return total - int((embedding.shape[0] - 1) * embedding.shape[1] * embedding.itemsize)


def _steps(engine: Engine, settings: FloorSettings, repeat: int) -> Iterator[tuple[float, float]]:
    """Seconds of each counted step and of its forward."""
    count = _WARM_UP + settings.steps
    prompt = tuple((7919 * i + 13) % engine.info.vocab_size for i in range(settings.context))
    sampling = SamplingParams(temperature=0.0, max_tokens=count + 1, ignore_eos=True)
    engine.add(Request(f"floor {repeat}", prompt, sampling))
    decoded = 0
    while engine.has_work:
        began = time.perf_counter()
        result = engine.step()
        seconds = time.perf_counter() - began
        if not result.outputs:
            continue  # a part of the prompt
        decoded += 1
        if decoded > 1 + _WARM_UP:
            yield seconds, dict(result.stats.phase_seconds)["verify"]


def print_floor(report: FloorReport, console: Console) -> None:
    print_table(_HEADINGS, [_cells(report)], report.conditions, console)


def write_floor(report: FloorReport, json: Path | None, markdown: Path | None) -> None:
    """Raises OSError."""
    if json is not None:
        json.write_bytes(to_json(report))
    if markdown is not None:
        write_markdown(_HEADINGS, [_cells(report)], report.conditions, markdown)


def _cells(report: FloorReport) -> list[str]:
    ratio = report.ratio
    return [
        report.target,
        f"{report.bandwidth.median / 1e9:.1f}",
        f"{report.weight_bytes / 1e6:.1f}",
        f"{report.kv_bytes / 1e6:.1f}",
        *(f"{value.median:.2f}" for value in (report.floor_ms, report.forward_ms, report.step_ms)),
        f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
    ]
