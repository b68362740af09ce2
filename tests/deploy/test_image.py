"""The image's parts that need no Docker: its recipe, what it copies, and what it starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
BAKE = ROOT / "docker" / "bake.sh"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH whose commands print their name, arguments, process and settings."""
    for name in ("resispec", "hf"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\necho "{name} $*"\necho "pid $$"\nenv | grep ^RESISPEC_ | sort\n')
        command.chmod(0o755)
    return f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def run(script: Path, path: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, **variables}
    command = ["sh", str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_bases_are_pinned_and_nobody_is_root() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-\w+-\w+$", text, re.MULTILINE)
    stages = re.findall(r"^FROM (\S+) AS (\w+)$", text, re.MULTILINE)
    assert stages[0] == ("python:${PYTHON}", "base")
    assert {source for source, _ in stages[1:]} <= {name for _, name in stages}
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users == ["10001:10001"]


def test_what_is_copied_is_in_the_context() -> None:
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"
    }
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text(), re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in allowed, source


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        ((), "resispec serve"),
        (("serve",), "resispec serve"),
        (("--device", "cuda"), "resispec serve --device cuda"),
        (("prepare", "--offline"), "resispec prepare --offline"),
        (("echo", "hello there"), "hello there"),
    ],
)
def test_the_entrypoint_runs(path: str, tmp_path: Path, arguments: tuple[str, ...], runs: str) -> None:
    result = run(ENTRYPOINT, path, *arguments, RESISPEC_CACHE=str(tmp_path))
    assert result.stdout.splitlines()[0] == runs
    assert result.returncode == 0, result.stderr


def test_empty_settings_count_as_not_set(path: str, tmp_path: Path) -> None:
    settings = {"RESISPEC_DRAFT": "", "RESISPEC_TARGET": "a b", "RESISPEC_CACHE": str(tmp_path)}
    result = run(ENTRYPOINT, path, **settings)
    assert result.stdout.splitlines()[2:] == [f"RESISPEC_CACHE={tmp_path}", "RESISPEC_TARGET=a b"]


def test_a_cache_that_cannot_be_written_is_named(path: str, tmp_path: Path) -> None:
    missing = tmp_path / "not there"
    result = run(ENTRYPOINT, path, RESISPEC_CACHE=str(missing))
    assert result.returncode == 2
    assert str(missing) in result.stderr
    assert "mount a volume" in result.stderr
    assert result.stdout == ""


def test_signals_reach_the_server(path: str, tmp_path: Path) -> None:
    """The server takes the entrypoint's place, so its process and exit code are the container's."""
    server = tmp_path / "bin" / "resispec"
    server.write_text('#!/bin/sh\ntrap "exit 7" TERM\necho ready\nwhile :; do sleep 0.05; done\n')
    environment = {"PATH": path, "RESISPEC_CACHE": str(tmp_path)}
    with subprocess.Popen(
        ["sh", str(ENTRYPOINT)], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert process.returncode == 7


def test_models_are_baked_by_name(path: str) -> None:
    result = run(BAKE, path, "default", "owner/name")
    commands = [line for line in result.stdout.splitlines() if line.startswith(("resispec", "hf"))]
    assert commands == ["resispec prepare", "hf download owner/name"]
    assert run(BAKE, path).stdout == ""
