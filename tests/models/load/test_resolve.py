"""What may name a model, and what is said of what may not."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from resispec.models.base import ModelError
from resispec.models.load import resolve

from ..tiny_gguf import write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with all that `resolve` looks for."""
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (path / name).write_text("{}")
    return path


def test_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert resolve("model") == folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_folder_that_lacks_something(folder: Path, name: str, reason: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=reason) as raised:
        resolve(str(folder))
    assert str(folder) in str(raised.value)


def test_pickled_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model.bin is a pickle"):
        resolve(str(folder))


def test_folder_with_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="name that file"):
        resolve(str(tmp_path))


def test_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "m.gguf")
    assert (resolve(str(tmp_path / "m.gguf")) / "model.safetensors").is_file()


def test_other_file(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve(str(tmp_path / "m.bin"))


@pytest.mark.parametrize("spec", ["no-such-thing", "no/such/folder", "missing.gguf", "/abs/path", "a/b.gguf"])
def test_nothing_there(spec: str) -> None:
    with pytest.raises(ModelError, match="there is no file or folder"):
        resolve(spec)


def test_hub_fetches_only_what_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(spec: str, **options: object) -> str:
        calls.append((spec, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("owner/name", offline=True) == folder
    [(spec, options)] = calls
    assert spec == "owner/name"
    assert options["local_files_only"] is True
    patterns = options["allow_patterns"]
    assert isinstance(patterns, list)
    assert "*.safetensors" in patterns
    assert not any(pattern in patterns for pattern in ("*.bin", "*.py", "*"))


@pytest.mark.parametrize(("offline", "reason"), [(True, "offline mode is on"), (False, "cannot be reached")])
def test_hub_out_of_reach(offline: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("nothing here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError, match=f"owner/name .*{reason}"):
        resolve("owner/name", offline=offline)
