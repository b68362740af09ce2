"""`resispec bench`: measure, show, write."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .floor import bench_floor, print_floor, write_floor
from .plot import write_plot
from .report import Report, print_report, write_files
from .run import bench
from .serving.run import bench_servers, bench_url
from .serving.settings import UrlSettings
from .settings import BenchSettings, FloorSettings, VerificationSettings
from .verification import bench_verification, print_verification, write_verification


def run(settings: BenchSettings) -> bool:
    """Whether everything was measured. Raises what `bench` raises, and OSError for the files."""
    measured = bench if settings.peers is None else bench_servers
    report = measured(settings, Console(stderr=True))
    return _deliver(report, settings.json, settings.markdown, settings.plot)


def run_url(settings: UrlSettings) -> bool:
    """The same of a running server. Raises what `bench_url` raises, and OSError for the files."""
    report = bench_url(settings, Console(stderr=True))
    return _deliver(report, settings.json, settings.markdown, settings.plot)


def run_verification(settings: VerificationSettings) -> bool:
    """The cost of verification. Raises what `bench_verification` raises, and OSError for the files."""
    report = bench_verification(settings, Console(stderr=True))
    print_verification(report, Console())
    write_verification(report, settings.json, settings.markdown)
    return True


def run_floor(settings: FloorSettings) -> bool:
    """One stream against the memory. Raises what `bench_floor` raises, and OSError for the files."""
    report = bench_floor(settings, Console(stderr=True))
    print_floor(report, Console())
    write_floor(report, settings.json, settings.markdown)
    return True


def _deliver(report: Report, json: Path | None, markdown: Path | None, plot: Path | None) -> bool:
    print_report(report, Console())
    write_files(report, json, markdown)
    if plot is not None:
        write_plot(report, plot)
    return report.complete
