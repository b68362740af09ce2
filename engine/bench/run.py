"""The measuring itself: everybody in turn, again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from resispec.models.load.causal import load_tokenizer
from resispec.models.load.resolve import resolve

from ..budget.record import AcceptanceRecord
from ..load import choose_device, choose_dtype
from ..outputs import number_format
from ..weights import settle_draft_weights
from .contenders import Contender, FailedContender
from .load import loaders
from .machine import describe_machine
from .measurement import Measurement
from .report import Report
from .settings import BenchSettings
from .summary import Case, headline_ratios, summarize
from .turns import Divisible, run_side_by_side
from .workload import Workload, encode_prompts, make_workloads


@dataclass(slots=True)
class Results:
    """What has been measured so far, and what has failed."""

    cases: list[Case] = field(default_factory=list)  # in the order of the report
    runs: dict[Case, dict[int, Measurement]] = field(default_factory=dict)  # by repeat
    errors: dict[Case, str] = field(default_factory=dict)
    interrupted: bool = False


def bench(settings: BenchSettings, console: Console) -> Report:
    """Load the contenders, measure and summarize; progress goes to ``console``.

    A contender that fails is a row with its reason. An interrupt ends the measuring early; what was
    measured is in the report. Raises ConfigError for a device or dtype, ModelError for a target without
    a tokenizer.
    """
    torch.set_num_threads(settings.num_threads or psutil.cpu_count(logical=False) or 1)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    machine = describe_machine(device)
    folder = resolve(settings.target, offline=settings.offline)
    tokenizer = load_tokenizer(folder)
    prompts = {name: encode_prompts(tokenizer, name) for name in settings.prompts}
    longest = max(len(prompt) for group in prompts.values() for prompt in group)
    workloads = make_workloads(settings, prompts)

    contenders: list[Contender] = []
    results = Results()
    try:
        max_model_len = max(longest + settings.tokens, (settings.intruder or 0) + 2)
        for names, load in loaders(settings, folder, device, dtype, max_model_len, console.print):
            console.print(f"loading {', '.join(names)}", style="dim")
            try:
                contenders += load()
            except Exception as error:  # noqa: BLE001  the others can still be measured
                contenders += [FailedContender(name, error) for name in names]
        measure(contenders, workloads, settings.repeats, results, console)
    except KeyboardInterrupt:
        results.interrupted = True
    if settings.trace is not None:
        runs = [run for by_repeat in results.runs.values() for run in by_repeat.values()]
        AcceptanceRecord().merge(run.record for run in runs).save(settings.trace)
    return Report(
        machine=machine,
        target=settings.target,
        draft=f"{settings.draft}, untrained" if settings.untrained else settings.draft,
        dtype=describe_numbers(settings, device, dtype) + (", compiled" if settings.compile else ""),
        tokens=settings.tokens,
        repeats=settings.repeats,
        rows=summarize(results.cases, results.runs, results.errors),
        ratios=headline_ratios(results.cases, results.runs),
        interrupted=results.interrupted,
        turns="everybody in turn, our engines a quarter of a second each",
    )


def describe_numbers(settings: BenchSettings, device: torch.device, dtype: torch.dtype) -> str:
    """The weights of target and draft, in words."""
    draft = None
    if settings.draft is not None:
        draft = settle_draft_weights(settings.draft_quantization, device, dtype)
    return number_format(settings.quantization, str(dtype).removeprefix("torch."), draft)


def measure(
    contenders: Sequence[Contender],
    workloads: Sequence[Workload],
    repeats: int,
    results: Results,
    console: Console,
) -> None:
    """Warm up, then run every contender once per repeat, in turn on each workload.

    Fills ``results`` as it goes, so that an interrupt loses nothing.
    """
    pairs = [(contender, workload) for workload in workloads for contender in contenders]
    pairs = [(contender, workload) for contender, workload in pairs if contender.takes(workload)]
    results.cases += [_case(contender.name, workload) for contender, workload in pairs]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Refreshed between runs only: a thread that draws would take time from what is measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("warm-up", total=len(pairs) * (repeats + 1))
        for contender, workload in pairs:
            _run(contender, workload.warm_up(), None, results)
            progress.advance(task)
            progress.refresh()
        for repeat in range(repeats):
            for workload, group in _rotated(pairs, repeat):
                what = f"{workload.prompts_name}, T={workload.temperature:g}, {_case('', workload).load}"
                progress.update(task, description=what)
                progress.refresh()
                _run_in_turn(group, workload, repeat, results)
                progress.advance(task, len(group))


def _run_in_turn(group: Sequence[Contender], workload: Workload, repeat: int, results: Results) -> None:
    """Those that can be stopped side by side, the others one after the other."""

    def keep(contender: Divisible, result: Measurement | Exception) -> None:
        case = _case(contender.name, workload)
        if isinstance(result, Exception):
            results.errors[case] = _reason(result)
        else:
            results.runs.setdefault(case, {})[repeat] = result

    sound = [contender for contender in group if _case(contender.name, workload) not in results.errors]
    run_side_by_side([one for one in sound if isinstance(one, Divisible)], workload, keep)
    for contender in sound:
        if not isinstance(contender, Divisible):
            _run(contender, workload, repeat, results)


def _run(contender: Contender, workload: Workload, repeat: int | None, results: Results) -> None:
    """repeat: None for a warm-up, whose figures are not kept."""
    case = _case(contender.name, workload)
    if case in results.errors:
        return
    try:
        measurement = contender.run(workload)
    except Exception as error:  # noqa: BLE001  a row with the reason; the others go on
        results.errors[case] = _reason(error)
    else:
        if repeat is not None:
            results.runs.setdefault(case, {})[repeat] = measurement


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _rotated(
    pairs: Sequence[tuple[Contender, Workload]], repeat: int
) -> Iterable[tuple[Workload, list[Contender]]]:
    """Workload by workload; within one, each repeat begins with another contender."""
    by_workload: dict[Workload, list[Contender]] = {}
    for contender, workload in pairs:
        by_workload.setdefault(workload, []).append(contender)
    for workload, group in by_workload.items():
        first = repeat % len(group)
        yield workload, group[first:] + group[:first]


def _case(name: str, workload: Workload) -> Case:
    return Case(name, workload.prompts_name, workload.temperature, workload.batch, workload.rate)
