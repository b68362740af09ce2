"""Cases and trees from JSON files, checked: what is no law is refused, with its number and the reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ..config import ConfigError

_SUM_TOLERANCE = 1e-6
Prefix = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One node: the target's law, the draft's, and how many children of which kind."""

    p: tuple[float, ...]
    q: tuple[float, ...]
    head: tuple[int, ...]  # in order
    tail_draws: int


@dataclass(frozen=True, slots=True)
class TreeCase:
    """A complete tree: ``head_size`` and ``tail_draws`` children at every node of the first levels."""

    depth: int  # levels of candidates
    head_size: int  # the head is the tokens below this
    tail_draws: int
    laws: Mapping[Prefix, tuple[tuple[float, ...], tuple[float, ...]]]  # p and q after every prefix

    @property
    def vocabulary(self) -> int:
        return len(self.laws[()][0])

    def node(self, prefix: Prefix) -> Case:
        p, q = self.laws[prefix]
        return Case(p, q, tuple(range(self.head_size)), self.tail_draws)


def read_cases(path: Path) -> list[Case]:
    """Raises ConfigError."""
    return [_case(entry, f"case {i + 1} (index {i})") for i, entry in enumerate(_entries(path))]


def read_trees(path: Path) -> list[TreeCase]:
    """Raises ConfigError."""
    return [_tree(entry, f"tree {i + 1} (index {i})") for i, entry in enumerate(_entries(path))]


def _entries(path: Path) -> list[Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path} must hold a list with at least one entry")
    return entries


def _case(entry: Any, where: str) -> Case:
    values = _object(entry, where)
    p = _law(values, "p", where)
    q = _law(values, "q", where)
    if len(p) != len(q):
        raise ConfigError(f"{where}: p has {len(p)} entries and q has {len(q)}; they must be as many")
    head = values.get("head", [])
    if not isinstance(head, list) or not all(_is_count(token) for token in head):
        raise ConfigError(f"{where}: head must be a list of token ids")
    for token in head:
        if token >= len(p):
            raise ConfigError(f"{where}: head names token {token}, but tokens are 0 to {len(p) - 1}")
    if len(set(head)) < len(head):
        raise ConfigError(f"{where}: head names a token twice")
    return Case(p, q, tuple(head), _count(values, "tail_draws", where))


def _tree(entry: Any, where: str) -> TreeCase:
    values = _object(entry, where)
    depth = _count(values, "depth", where)
    listed = values.get("laws")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}: laws must be a list with a law for every prefix")
    laws: dict[Prefix, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for law in listed:
        prefix = _object(law, where).get("prefix")
        if not isinstance(prefix, list) or not all(_is_count(token) for token in prefix):
            raise ConfigError(f"{where}: a prefix must be a list of token ids")
        here = f"{where}, prefix {prefix}"
        laws[tuple(prefix)] = (_law(law, "p", here), _law(law, "q", here))
    vocabulary = len(laws.get((), ((), ()))[0])
    for length in range(depth + 1):
        for wanted in product(range(vocabulary), repeat=length):
            if wanted not in laws:
                raise ConfigError(f"{where}: the law of prefix {list(wanted)} is missing")
    if vocabulary == 0:
        raise ConfigError(f"{where}: the law of prefix [] is missing")
    for prefix, (p, q) in laws.items():
        if len(p) != vocabulary or len(q) != vocabulary:
            raise ConfigError(f"{where}, prefix {list(prefix)}: p and q must have {vocabulary} entries")
    head_size = _count(values, "head_size", where)
    if head_size > vocabulary:
        raise ConfigError(f"{where}: head_size is {head_size}, but there are {vocabulary} tokens")
    return TreeCase(depth, head_size, _count(values, "tail_draws", where), laws)


def _object(entry: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return entry


def _law(values: Mapping[str, Any], name: str, where: str) -> tuple[float, ...]:
    law = values.get(name)
    if not isinstance(law, list) or not law:
        raise ConfigError(f"{where}: {name} must be a list of probabilities")
    for token, mass in enumerate(law):
        if isinstance(mass, bool) or not isinstance(mass, int | float) or not math.isfinite(mass):
            raise ConfigError(f"{where}: {name}[{token}] is {mass!r}, which is no number")
        if mass < 0:
            raise ConfigError(f"{where}: {name}[{token}] is {mass}; a probability is never negative")
    total = math.fsum(law)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ConfigError(f"{where}: {name} sums to {total:.9g}, not to 1")
    return tuple(float(mass) / total for mass in law)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(values: Mapping[str, Any], name: str, where: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or not _is_count(value):
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a whole number, 0 or more")
    return value
