"""Whole or not at all: damage, killed processes, several at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import Timeout

from resispec.models.base import ModelError
from resispec.models.prepare import cache as cache_module
from resispec.models.prepare import manifest
from resispec.models.prepare.cache import cache_root, prepared
from resispec.models.prepare.progress import Progress

SOURCE = {"test": "1"}

# Makes a folder slowly, after saying so on stdout; given "die", is killed halfway.
SLOW = """
import os, signal, sys, time
from resispec.models.prepare.cache import prepared
from resispec.models.prepare.progress import Progress

def make(folder, progress):
    (folder / "weights").write_text("half")
    print("making", flush=True)
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    (folder / "weights").write_text("whole")

print(prepared("model", {}, make, Progress()))
"""


def make(folder: Path, _: Progress) -> None:
    (folder / "weights").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")


def refuse(*_: object) -> None:
    pytest.fail("made again")


def test_made_once() -> None:
    folder = prepared("model", SOURCE, make, Progress())
    assert folder == cache_root() / "models" / "model"
    assert prepared("model", SOURCE, refuse, Progress()) == folder
    assert json.loads((folder / "manifest.json").read_text())["source"] == SOURCE


@pytest.mark.parametrize("damage", ["change", "cut", "remove", "manifest"])
def test_damaged_is_made_again(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepared("model", SOURCE, make, Progress())
    weights = folder / "weights"
    match damage:
        case "change":
            weights.write_bytes(b"wEights")
        case "cut":
            weights.write_bytes(b"w")
        case "remove":
            weights.unlink()
        case "manifest":
            (folder / "manifest.json").write_text("{")
    assert prepared("model", SOURCE, make, Progress()) == folder
    assert weights.read_bytes() == b"weights"
    assert "damaged" in capsys.readouterr().err


def test_large_files_are_hashed_only_when_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "SMALL_FILE", 5)
    folder = prepared("model", SOURCE, make, Progress())
    hashed: list[str] = []
    sha256 = manifest.sha256

    def note(path: Path) -> str:
        hashed.append(path.name)
        return sha256(path)

    monkeypatch.setattr(manifest, "sha256", note)
    manifest.check_manifest(folder)
    assert hashed == ["config.json"]
    os.utime(folder / "weights", ns=(0, 0))
    manifest.check_manifest(folder)
    assert hashed[1:] == ["config.json", "weights"]
    manifest.check_manifest(folder)
    assert hashed[3:] == ["config.json"]
    (folder / "weights").write_bytes(b"wEights")
    with pytest.raises(manifest.DamagedError, match="contents of weights"):
        manifest.check_manifest(folder)


def test_failure_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path, _: Progress) -> None:
        (folder / "weights").write_text("half")
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        prepared("model", SOURCE, fail, Progress())
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == []


def test_killed_halfway(cache: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", SLOW, "die"], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    models = cache / "models"
    assert not (models / "model").exists()
    assert len(list(models.glob(".model.tmp-*"))) == 1
    assert (prepared("model", SOURCE, make, Progress()) / "weights").read_bytes() == b"weights"
    assert list(models.glob(".model.tmp-*")) == []


def test_two_at_once() -> None:
    command = [sys.executable, "-c", SLOW, "live"]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    results = [process.communicate(timeout=60) for process in both]
    printed = sorted("".join(out for out, _ in results).split())
    folder = str(cache_root() / "models" / "model")
    assert printed == sorted(["making", folder, folder]), results
    assert Path(folder, "weights").read_text() == "whole"


def test_waiting_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Busy:
        def __init__(self, _: Path) -> None:
            self.tries = 0

        def acquire(self, timeout: float = -1) -> None:
            if timeout >= 0:
                raise Timeout("held")

        def release(self) -> None:
            pass

    monkeypatch.setattr(cache_module, "FileLock", Busy)
    prepared("model", SOURCE, make, Progress())
    assert "Another process" in capsys.readouterr().err


def test_user_cache_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESISPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_root().name == "resispec"
