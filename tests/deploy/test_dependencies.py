"""What the rooms import is what pyproject.toml asks for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
COME_ALONG = {"starlette": "fastapi", "pydantic-core": "pydantic"}  # part of another's interface
NAMESPACES = {"opentelemetry": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}}  # of many
PEERS = {"xllamacpp"}  # imported in environments of their own, to be measured
INDIRECT = {
    "accelerate",  # transformers reads GGUF files with it
    "jinja2",  # transformers renders chat templates with it
    "sentencepiece",  # transformers reads tokenizer.model files with it
}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> Iterator[str]:
    for room in ("server", "engine", "models"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    yield from (alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    yield node.module.partition(".")[0]


def test_every_import_is_declared_and_the_other_way_round() -> None:
    providers = packages_distributions()
    third_party = set(imported()) - set(sys.stdlib_module_names) - {"resispec"} - PEERS
    used = {
        normalised(name)
        for package in third_party
        for name in NAMESPACES.get(package, providers.get(package, [package]))
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    entries = [*project["dependencies"], *optional["plot"], *optional["otel"]]
    declared = {normalised(re.split(r"[<>=!~;\[ ]", entry)[0]) for entry in entries}
    assert {COME_ALONG.get(name, name) for name in used} | INDIRECT == declared
