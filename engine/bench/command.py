"""`resispec bench`: measure, show, write."""

from __future__ import annotations

from rich.console import Console

from .report import print_report, write_files
from .run import bench
from .settings import BenchSettings


def run(settings: BenchSettings) -> bool:
    """Whether everything was measured. Raises what `bench` raises, and OSError for the files."""
    report = bench(settings, Console(stderr=True))
    print_report(report, Console())
    write_files(report, settings.json, settings.markdown)
    return report.complete
