"""The rooms' one direction: server -> engine -> models."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {"models": ("resispec.engine", "resispec.server"), "engine": ("resispec.server",)}
WEB = ("fastapi", "starlette", "uvicorn", "sse_starlette", "prometheus_client", "httpx", "pydantic_settings")

# Imports every module of a room while some packages cannot be imported, and prints how many there were.
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[2:]:
    sys.modules[name] = None
modules = sys.argv[1].split(",")
for name in modules:
    importlib.import_module(name)
print(len(modules))
"""


def modules(room: str) -> list[str]:
    paths = sorted((ROOT / room).rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    return [
        ".".join(("resispec", *part)).removesuffix(".__init__") for part in parts if part[-1] != "__main__"
    ]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all a file imports, inside functions too."""
    package = ["resispec", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_no_import_against_the_direction(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for name in imports(path)
        if any(within(name, package) for package in FORBIDDEN[room])
    ]
    assert wrong == []


def test_relative_imports_are_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: it sees a relative way into another room."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "models" / "load" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text("def f():\n    from ...engine import config\n    from . import good\n")
    assert list(imports(path)) == ["resispec.engine.config", "resispec.models.load.good"]


@pytest.mark.parametrize("room", ["models", "engine"])
def test_imports_without_web_packages(room: str) -> None:
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(modules(room)), *WEB]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 2


def test_every_package_is_typed() -> None:
    packages = {
        path.parent for room in ("server", "engine", "models") for path in (ROOT / room).rglob("*.py")
    }
    assert [str(path) for path in sorted(packages) if not (path / "py.typed").exists()] == []
