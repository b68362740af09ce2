"""`resispec audit` on files: read, enumerate, print."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from .read import read_cases, read_trees
from .report import audit_cases, audit_trees, print_cases, print_trees


def run(cases: Path | None, trees: Path | None, *, as_json: bool) -> None:
    """Audit cases, trees, or both: one JSON object, or a table each. Raises ConfigError for bad input."""
    # Both are read before anything is enumerated.
    nodes = read_cases(cases) if cases is not None else None
    whole = read_trees(trees) if trees is not None else None
    by_case = audit_cases(nodes) if nodes is not None else {}
    by_tree = audit_trees(whole) if whole is not None else {}
    if as_json:
        print(json.dumps({**by_case, **by_tree}))  # noqa: T201
        return
    console = Console()
    if by_case:
        print_cases(by_case, console)
    if by_tree:
        print_trees(by_tree, console)
