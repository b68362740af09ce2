"""The manifest of a prepared folder: what every file in it must hash to."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

MANIFEST = "manifest.json"
VERIFIED = "verified.json"  # size and mtime of large files at the moment their hash was last seen right
SMALL_FILE = 16 << 20  # bytes; anything smaller is hashed on every use


class DamagedError(Exception):
    """A prepared folder that is not what its manifest says. Holds the reason."""


def sha256(path: Path) -> str:
    """The file's SHA-256 as lower-case hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, source: dict[str, str]) -> None:
    """Record the hashes of all files in ``folder`` and where they came from; flush them to the disk."""
    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(folder.iterdir()):
        # A rename that survives a power cut must not point at data that did not.
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
    (folder / MANIFEST).write_text(json.dumps({"source": source, "files": files}, indent=1) + "\n")
    _write_verified(folder, list(files))


def check_manifest(folder: Path) -> None:
    """Check a prepared folder. Raises DamagedError.

    Small files are hashed every time. Large ones are hashed when their size or modification time is
    not the one noted when the hash was last right, so that the usual start does not read them twice.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"its {MANIFEST} cannot be read ({error})") from error
    verified, hashed = _read_verified(folder), []
    for name, (size, digest) in expected.items():
        path = folder / name
        try:
            stat = path.stat()
            if stat.st_size != size:
                raise DamagedError(f"{name} has {stat.st_size} bytes instead of {size}")
            if size >= SMALL_FILE:
                if verified.get(name) == [size, stat.st_mtime_ns]:
                    continue
                hashed.append(name)
            if sha256(path) != digest:
                raise DamagedError(f"the contents of {name} have changed")
        except OSError as error:
            raise DamagedError(f"{name} cannot be read ({error.strerror})") from error
    if hashed:
        with suppress(OSError):  # a read-only cache is fine: it is hashed again next time
            _write_verified(folder, list(expected))


def _read_verified(folder: Path) -> dict[str, list[int]]:
    try:
        noted = json.loads((folder / VERIFIED).read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _write_verified(folder: Path, names: list[str]) -> None:
    stats = {name: (folder / name).stat() for name in names}
    large = {name: stat for name, stat in stats.items() if stat.st_size >= SMALL_FILE}
    noted = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in large.items()}
    temporary = folder / f".{VERIFIED}.{os.getpid()}"
    temporary.write_text(json.dumps(noted))
    temporary.replace(folder / VERIFIED)
