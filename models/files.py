"""Files that are written whole or not at all, so that a full disk leaves what was there before."""

from __future__ import annotations

import os
from pathlib import Path

from .base import ModelError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file beside ``path`` and put it there when it is complete.

    Raises ModelError, with the reason, where the disk does not take it; ``path`` is then what it was.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def allocate(path: Path, size: int) -> None:
    """Make ``path`` a file of ``size`` bytes that the disk has room for: a write to a mapped file with no
    room behind it would end the process.

    Raises ModelError, and leaves no file, where there is too little.
    """
    try:
        with path.open("wb") as file:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise unwritable(path, error, f"; {size / 1e9:.1f} GB are needed") from error


def unwritable(path: Path, error: OSError, needed: str = "") -> ModelError:
    """What to tell of a file that could not be written."""
    return ModelError(f"cannot write {path}: {error.strerror or error}{needed}")
