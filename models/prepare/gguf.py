"""GGUF files the user names: converted once per content."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from resispec.models.base import ModelError

from .cache import cache_root, prepared, writing
from .convert import CONVERTER, convert
from .manifest import sha256
from .progress import Progress


def prepare_gguf(path: Path, *, progress: Progress | None = None) -> Path:
    """The folder converted from the GGUF file ``path``, made on the first call for this content.

    Raises ModelError naming the file if it is not a whole GGUF file of a supported architecture.
    """
    path = path.expanduser().resolve()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file (it starts with {magic!r})")
        digest = _content_hash(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    source = {"gguf": path.name, "gguf_sha256": digest}
    return prepared(
        f"{path.stem}-{digest[:12]}-v{CONVERTER}",
        source,
        lambda folder, reporter: convert(path, folder, reporter),
        progress or Progress(),
    )


def _content_hash(path: Path) -> str:
    """The file's SHA-256, remembered for as long as its size and modification time stay the same."""
    stat = path.stat()
    known = cache_root() / "known" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:24]}.json"
    try:
        size, modified, digest = json.loads(known.read_text())
        if (size, modified) == (stat.st_size, stat.st_mtime_ns):
            return str(digest)
    except (OSError, ValueError):
        pass  # never seen, or the note is unreadable: hash it
    digest = sha256(path)
    with writing(known.parent):
        known.parent.mkdir(parents=True, exist_ok=True)
        temporary = known.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps([stat.st_size, stat.st_mtime_ns, digest]))
        temporary.replace(known)
    return digest
