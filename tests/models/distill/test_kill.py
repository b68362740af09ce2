"""Runs that end in the middle: by SIGKILL, by a full disk. They go on, and nothing is half-written."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from resispec.models import files
from resispec.models.base import ModelError
from resispec.models.distill.run import DistillSettings, distill

QUIET = Console(quiet=True)
STEPS = 400  # some seconds of training


@pytest.fixture(scope="module")
def folder(target: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, its tokenizer, and text for it."""
    folder = tmp_path_factory.mktemp("models")
    target.save_pretrained(folder / "tiny")
    words = {f"w{number}": number for number in range(30)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0").save_pretrained(folder / "tiny")
    generator = random.Random(0)
    lines = [
        {"prompt": [n], "output": generator.choices(range(30), range(30, 0, -1), k=20)} for n in range(30)
    ]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def settings(folder: Path, out: Path, **changes: Any) -> DistillSettings:
    values: dict[str, Any] = {"steps": STEPS, "vocab": 12, "dtype": "float32", "device": "cpu"} | changes
    return DistillSettings(target=str(folder / "tiny"), out=out, data=(folder / "text.jsonl",), **values)


def start(folder: Path, out: Path) -> "subprocess.Popen[bytes]":
    """The command itself, with a checkpoint after every step."""
    command = [sys.executable, "-m", "resispec.server.cli", "distill", "--target", str(folder / "tiny")]
    command += ["--out", str(out), "--data", str(folder / "text.jsonl"), "--steps", str(STEPS)]
    command += ["--vocab", "12", "--dtype", "float32", "--device", "cpu", "--save-minutes", "0"]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


def test_a_killed_run_ends_where_an_unbroken_one_does(folder: Path, tmp_path: Path) -> None:
    process = start(folder, tmp_path / "killed")
    checkpoint = tmp_path / "killed.work" / "training.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    assert 0 < torch.load(checkpoint, weights_only=True)["step"] < STEPS
    assert not (tmp_path / "killed").exists()

    killed = load_file(
        distill(settings(folder, tmp_path / "killed", resume=True), QUIET) / "model.safetensors"
    )
    whole = load_file(distill(settings(folder, tmp_path / "whole"), QUIET) / "model.safetensors")
    for name, value in whole.items():
        assert torch.equal(killed[name], value), name


class FullDisk:
    """A disk that takes no file of a certain name any more, and half of the one that it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write_bytes(self, path: Path, data: bytes) -> int:
        whole = not path.name.startswith(self.name)
        with path.open("wb") as file:
            file.write(data if whole else data[: len(data) // 2])
        if not whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return len(data)


@pytest.mark.parametrize(
    "name", ["tokens.npy", "progress.json", "training.pt", "model.safetensors", "README.md"]
)
def test_a_full_disk_leaves_nothing_half_written(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings(folder, tmp_path / "head", steps=4)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", lambda path, data: FullDisk(name).write_bytes(path, data))
        with pytest.raises(ModelError, match=f"cannot write .*{name}: No space left on device"):
            distill(run, QUIET)
    left = [
        path for place in ("head", "head.work") for path in (tmp_path / place).rglob("*") if path.is_file()
    ]
    assert not [path for path in left if path.name == name or path.suffix == ".tmp"]
    # With room again it goes on with what there was.
    out = distill(settings(folder, tmp_path / "head", steps=4, resume=True), QUIET)
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors", "README.md"}


def test_a_full_disk_keeps_the_checkpoint_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distill(settings(folder, tmp_path / "head", steps=4), QUIET)
    checkpoint = tmp_path / "head.work" / "training.pt"
    before, head = checkpoint.read_bytes(), (tmp_path / "head" / "model.safetensors").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(
            Path, "write_bytes", lambda path, data: FullDisk("training.pt").write_bytes(path, data)
        )
        with pytest.raises(ModelError, match="No space left"):
            distill(settings(folder, tmp_path / "head", steps=6, resume=True), QUIET)
    assert checkpoint.read_bytes() == before
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == head


def test_room_for_the_hidden_states_is_taken_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written through a mapping, where a disk without room would end the process."""
    if not hasattr(os, "posix_fallocate"):
        pytest.skip("this system cannot allocate a file")
    files.allocate(tmp_path / "hidden.bin", 1 << 20)
    assert (tmp_path / "hidden.bin").stat().st_blocks * 512 >= 1 << 20

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ModelError, match=r"No space left on device; 3\.0 GB are needed"):
        files.allocate(tmp_path / "more.bin", 3_000_000_000)
    assert not (tmp_path / "more.bin").exists()
