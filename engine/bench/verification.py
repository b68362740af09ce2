"""What verification costs: the laws, tests and draws of a step against the target's forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from resispec.models.load.causal import load_tokenizer

from ..config import EngineConfig
from ..engine import Engine
from ..load import build_engine, choose_device
from ..outputs import number_format
from ..request import Request, SamplingParams, SpeculationMode, SpeculationParams
from .contenders import BenchError
from .machine import Machine, describe_machine
from .settings import VerificationSettings
from .summary import Spread, spread_of
from .tables import print_table, to_json, write_markdown
from .workload import at_least as repeated
from .workload import encode_prompts

_WARM_UP = 4  # steps that all requests decode in before any is counted
_HEADINGS = ("verifier", "T", "batch", "nodes/tree", "draft, ms", "forward, ms", "verification, ms", "share")


@dataclass(frozen=True, slots=True)
class VerificationRow:
    """Medians of the steps, spread over the repeats. Times in milliseconds."""

    verifier: str
    temperature: float
    batch: int
    nodes: float  # candidates of the median tree
    draft_ms: Spread
    forward_ms: Spread
    verification_ms: Spread
    share: Spread  # of verification, over the forward


@dataclass(frozen=True, slots=True)
class VerificationReport:
    machine: Machine
    target: str
    draft: str
    dtype: str
    vocabulary: int
    repeats: int
    rows: tuple[VerificationRow, ...]

    @property
    def conditions(self) -> tuple[str, ...]:
        lines = [
            f"Machine: {self.machine}.",
            f"Target {self.target}, draft {self.draft}, {self.dtype}, {self.vocabulary} tokens.",
            f"Medians of the steps and of {self.repeats} repeats, from lowest to highest in brackets.",
        ]
        return (*lines, self.machine.warning) if self.machine.warning else tuple(lines)


@dataclass(frozen=True, slots=True)
class _Step:
    draft: float
    forward: float
    verification: float
    nodes: float


def bench_verification(settings: VerificationSettings, console: Console) -> VerificationReport:
    """Raises ConfigError, ModelError, and BenchError for a verifier that cannot be used."""
    engine = build_engine(
        EngineConfig(
            settings.target,
            draft=settings.draft,
            device=settings.device,
            dtype=settings.dtype,
            max_num_seqs=settings.batch,
            max_tree_nodes=settings.nodes,
            max_tree_depth=settings.depth,
            max_step_nodes=settings.batch * settings.nodes,
            allow_inexact=True,
            prefix_caching=False,
            num_threads=settings.num_threads,
            offline=settings.offline,
        )
    )
    if engine.info.draft is None:
        raise BenchError(" ".join(engine.info.notes) or "the engine runs without a draft")
    prompts = repeated(encode_prompts(load_tokenizer(Path(engine.info.target_path)), "chat"), settings.batch)
    machine = describe_machine(choose_device(engine.info.device))
    cases = [(name, heat) for heat in settings.temperature for name in settings.verifiers]
    medians: dict[tuple[str, float], list[_Step]] = {case: [] for case in cases}
    for repeat in range(settings.repeats):
        for case in cases:
            console.print(f"{case[0]}, T={case[1]:g}, repeat {repeat + 1}", style="dim")
            steps = list(_steps(engine, settings, *case, prompts[: settings.batch]))
            medians[case].append(_median(steps))
    return VerificationReport(
        machine=machine,
        target=settings.target,
        draft=settings.draft,
        dtype=number_format(engine.info.quantization, engine.info.dtype, engine.info.draft_quantization),
        vocabulary=engine.info.vocab_size,
        repeats=settings.repeats,
        rows=tuple(_row(case, settings.batch, steps) for case, steps in medians.items()),
    )


def _steps(
    engine: Engine,
    settings: VerificationSettings,
    verifier: str,
    temperature: float,
    prompts: Sequence[tuple[int, ...]],
) -> Iterator[_Step]:
    """The counted steps of one repeat: all requests decode, each with its whole tree."""
    requests = [
        Request(
            f"{verifier} {temperature} {index}",
            prompt,
            # With a seed: such a request has the same trees whatever else runs.
            SamplingParams(temperature=temperature, seed=index, ignore_eos=True),
            SpeculationParams(verifier=verifier, mode=SpeculationMode.FIXED),
        )
        for index, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    try:
        seen = 0
        while seen < _WARM_UP + settings.steps:
            stats = engine.step().stats
            if stats.finished:
                raise BenchError("a request ended early; ask for fewer steps")
            if sum(part.num_drafts for part in stats.speculation) < settings.batch:
                continue  # some prompts are still being run
            seen += 1
            if seen > _WARM_UP:
                phases = dict(stats.phase_seconds)
                nodes = median(size for part in stats.speculation for size in part.tree_nodes)
                yield _Step(phases["draft"], phases["verify"], phases["sample"], nodes)
    finally:
        for request in requests:
            engine.abort(request.request_id)
        while engine.has_work:
            engine.step()


def _median(steps: Sequence[_Step]) -> _Step:
    return _Step(
        median(step.draft for step in steps),
        median(step.forward for step in steps),
        median(step.verification for step in steps),
        median(step.nodes for step in steps),
    )


def _row(case: tuple[str, float], batch: int, steps: Sequence[_Step]) -> VerificationRow:
    return VerificationRow(
        *case,
        batch,
        median(step.nodes for step in steps),
        spread_of(1e3 * step.draft for step in steps),
        spread_of(1e3 * step.forward for step in steps),
        spread_of(1e3 * step.verification for step in steps),
        spread_of(step.verification / step.forward for step in steps),
    )


def print_verification(report: VerificationReport, console: Console) -> None:
    print_table(_HEADINGS, [_cells(row) for row in report.rows], report.conditions, console)


def write_verification(report: VerificationReport, json: Path | None, markdown: Path | None) -> None:
    """Raises OSError."""
    if json is not None:
        json.write_bytes(to_json(report))
    if markdown is not None:
        write_markdown(_HEADINGS, [_cells(row) for row in report.rows], report.conditions, markdown)


def _cells(row: VerificationRow) -> list[str]:
    names = [row.verifier, f"{row.temperature:g}", str(row.batch), f"{row.nodes:g}"]
    times = [f"{value.median:.1f}" for value in (row.draft_ms, row.forward_ms, row.verification_ms)]
    share = row.share
    return [*names, *times, f"{share.median:.1%} ({share.low:.1%} to {share.high:.1%})"]
