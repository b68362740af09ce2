"""`resispec audit`: read or sample, add up, print."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from .pair import audit_pair, audit_splits
from .pair_report import pair_json, print_pair, require_plotting, write_pair
from .read import read_cases, read_trees
from .report import audit_cases, audit_trees, print_cases, print_trees
from .settings import PairSettings
from .splits_report import print_splits, splits_json


def run(
    cases: Path | None,
    trees: Path | None,
    pair: PairSettings | None = None,
    output: Path | None = None,
    *,
    splits: bool = False,
    as_json: bool,
) -> None:
    """Audit cases, trees and a pair, what is given of them: one JSON object, or a table each.

    output: folder for the pair's figures and plot. splits: of the pair, instead of its verifiers every
    split of children. Raises ConfigError for bad input, ModelError.
    """
    # All is read before anything is enumerated.
    nodes = read_cases(cases) if cases is not None else None
    whole = read_trees(trees) if trees is not None else None
    if output is not None:
        require_plotting()
    by_case = audit_cases(nodes) if nodes is not None else {}
    by_tree = audit_trees(whole) if whole is not None else {}
    progress = Console(stderr=True)
    rows = audit_pair(pair, progress) if pair is not None and not splits else []
    by_split = audit_splits(pair, progress) if pair is not None and splits else []
    if pair is not None and output is not None:
        write_pair(pair, rows, output)
    if as_json:
        of_pair = {} if pair is None else splits_json(pair, by_split) if splits else pair_json(pair, rows)
        print(json.dumps({**by_case, **by_tree, **of_pair}))  # noqa: T201
        return
    console = Console()
    if by_case:
        print_cases(by_case, console)
    if by_tree:
        print_trees(by_tree, console)
    if pair is not None and splits:
        print_splits(pair, by_split, console)
    elif pair is not None:
        print_pair(pair, rows, console)
