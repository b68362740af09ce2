"""From a name to a folder on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from resispec.models.base import ModelError
from resispec.models.prepare import prepare_default, prepare_gguf

DEFAULT = "default"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# Everything a causal model and its tokenizer are made of; no other weight format, no code.
HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def resolve(spec: str, *, offline: bool = False) -> Path:
    """The local folder of a model, fetched or converted first if need be.

    spec: "default", a folder, a GGUF file, or a hub id such as ``owner/name``. What exists on the disk
    goes before the hub. offline: touch no network. Raises ModelError saying what is missing.
    """
    if spec == DEFAULT:
        return prepare_default(offline=offline)
    return check_folder(locate(spec, offline=offline))


def locate(spec: str, *, offline: bool = False) -> Path:
    """The same, whatever the folder holds: what drafts with the target's own tokenizer has none."""
    path = Path(spec).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is a file, but not a GGUF file; name a model's folder or a .gguf file")
        return prepare_gguf(path)
    if path.suffix.lower() == ".gguf" or not HUB_ID.fullmatch(spec):
        raise ModelError(
            f"there is no file or folder {spec!r}, and it is not a hub id (owner/name) or {DEFAULT!r} either"
        )
    return _from_hub(spec, offline=offline)


def check_folder(folder: Path) -> Path:
    """Return ``folder`` if it can hold a model and its tokenizer, else raise ModelError naming what lacks."""
    if not (folder / "config.json").is_file():
        hint = "; it holds a GGUF file: name that file itself" if any(folder.glob("*.gguf")) else ""
        raise ModelError(f"{folder} has no config.json, so it is not a model's folder{hint}")
    if not any(folder.glob("*.safetensors")):
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = f" ({others[0]} is a pickle: convert it to safetensors)" if others else ""
        raise ModelError(f"{folder} has no weights: no *.safetensors file{hint}")
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
    if not any((folder / name).is_file() for name in tokenizers):
        raise ModelError(f"{folder} has no tokenizer: none of {', '.join(tokenizers)}")
    return folder


def _from_hub(spec: str, *, offline: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            huggingface_hub.snapshot_download(spec, allow_patterns=list(HUB_FILES), local_files_only=offline)
        )
    except LocalEntryNotFoundError as error:
        why = "offline mode is on" if offline else "the hub cannot be reached"
        raise ModelError(f"{spec} is not in the hub's local cache, and {why}; name a local folder") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(
            f"{spec} cannot be fetched from the hub: {str(error).strip().splitlines()[0]}"
        ) from error
