"""The audit of a running server: what it was asked, the tests, the verdict; as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from resispec.models.device import device_for
from resispec.models.fit import lay_out
from resispec.models.load.causal import load_tokenizer

from ..bench.workload import encode_prompts
from ..config import ConfigError, EngineConfig
from ..load import load_pair
from ..outputs import number_format
from .live import Answer, LiveLaws
from .settings import LiveSettings
from .uniformity import SIGNIFICANCE, UniformityTest, uniformity_tests, verdict

_PROMPTS = 8  # of the built-in chat set


@dataclass(frozen=True, slots=True)
class LiveReport:
    verifier: str | None  # that the server says it used
    exact: bool | None  # what the server says of it
    answers: int
    tokens: int
    accepted: int  # tokens that were drafted
    tests: tuple[UniformityTest, ...]
    p_value: float  # how often a right server looks as bad

    @property
    def passed(self) -> bool:
        return self.p_value >= SIGNIFICANCE


class LiveAudit:
    """The target, loaded here, and the prompts to ask the server for answers to."""

    def __init__(self, settings: LiveSettings) -> None:
        """Raises ConfigError and ModelError."""
        self._settings = settings
        config = EngineConfig(
            settings.target, device=settings.device, dtype=settings.dtype, offline=settings.offline
        )
        target, _ = load_pair(config)
        tokenizer = load_tokenizer(Path(target.path))
        self.prompts = encode_prompts(tokenizer, "chat")[:_PROMPTS]
        self._laws = LiveLaws(target, self.prompts, settings.tokens)
        device = target.model.device
        if settings.quantization != "none" and not device_for(device).quantizes:
            raise ConfigError(
                f"the server's weights are {settings.quantization}, which {device.type} cannot compute with; "
                "use --device cpu"
            )
        lay_out(target.model, settings.quantization)  # rounded as the server's are

    def report(self, answers: Sequence[Answer], verifier: str | None, exact: bool | None) -> LiveReport:
        settings = self._settings
        generator = torch.Generator().manual_seed(settings.seed)
        uniforms = torch.rand(len(answers), settings.tokens, generator=generator, dtype=torch.float64)
        tests = uniformity_tests(self._laws.transform(answers, settings.temperature, uniforms))
        return LiveReport(
            verifier,
            exact,
            len(answers),
            sum(len(answer.token_ids) for answer in answers),
            sum(answer.accepted for answer in answers),
            tuple(tests),
            verdict(tests),
        )


def live_json(settings: LiveSettings, report: LiveReport) -> dict[str, Any]:
    """``{"live": {settings.., "tests": [{"name", "bins", "count", "statistic", "p_value"}], "passed"}}``."""
    return {"live": {**asdict(settings), **asdict(report), "passed": report.passed}}


def print_live(settings: LiveSettings, report: LiveReport, console: Console) -> None:
    table = Table(
        title=f"{report.answers} answers of {settings.url}, T = {settings.temperature:g}, against the law of "
        f"{settings.target}"
    )
    table.add_column("test", no_wrap=True)
    for column in ("answers", "bins", "chi-square", "p-value"):
        table.add_column(column, justify="right", no_wrap=True)
    for test in report.tests:
        table.add_row(
            test.name, str(test.count), str(test.bins), f"{test.statistic:.1f}", f"{test.p_value:.2g}"
        )
    console.print(table)
    numbers = number_format(settings.quantization, settings.dtype)
    rule = "no verifier named" if report.verifier is None else f"verifier {report.verifier}"
    share = report.accepted / max(1, report.tokens)
    console.print(
        f"{numbers}; {rule}; {report.accepted} of {report.tokens} tokens ({share:.0%}) were drafted ones"
    )
    looks = f"a right server looks as bad in {_share(report.p_value)} such audits"
    if report.passed:
        console.print(f"No difference found: {looks}.")
    else:
        console.print(f"[bold red]Not the target's law[/]: {looks}.")


def _share(p_value: float) -> str:
    """``one in 20``; of tiny ones, the order."""
    return f"one in {1 / p_value:,.0f}" if p_value > 1e-9 else "less than one in 1,000,000,000"
