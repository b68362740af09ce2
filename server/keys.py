"""The API keys that are let in: those of the settings, and those of a file, read again as it changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  # between two looks at the file


class KeyFileError(ValueError):
    """A key file that cannot be used; says why, and never quotes it."""


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in ``path``, one a line; empty lines and lines that begin with # do not count.

    Raises KeyFileError for a file that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as exc:
        raise KeyFileError(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise KeyFileError(f"{path} is not UTF-8") from exc
    return tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))


class KeyRing:
    """Knows keys by their digests. Not thread-safe; meant for the event loop.

    A file that is there says who is let in, even if it says nobody. While it cannot be read, the keys
    last read from it hold on.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        """Raises KeyFileError."""
        self._fixed = [_digest(key) for key in keys]
        self._file = file
        self._from_file: list[bytes] = []
        self._version: tuple[int, ...] | None = None
        self._checked = time.monotonic()
        if file is not None:
            self._version = _version(file)
            self._from_file = [_digest(key) for key in read_keys(file)]

    @property
    def required(self) -> bool:
        """Whether clients need a key at all."""
        return bool(self._fixed) or self._file is not None

    def identify(self, key: str) -> str | None:
        """A name for the holder of ``key`` that tells nothing about it; None for a key that is not known."""
        self._refresh()
        digest = _digest(key)
        # Digests have one length and every key is compared: the time tells nothing about any of them.
        matches = [hmac.compare_digest(digest, known) for known in (*self._fixed, *self._from_file)]
        return digest.hex()[:16] if any(matches) else None

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        try:
            version = _version(self._file)
            if version == self._version:
                return
            self._from_file = [_digest(key) for key in read_keys(self._file)]
        except KeyFileError as exc:
            logger.error("keeping the API keys as they were: %s", exc)
            return
        self._version = version
        logger.info("%d API keys read from %s", len(self._from_file), self._file)


def _version(path: Path) -> tuple[int, ...]:
    """What differs once the file has been written or replaced."""
    try:
        stat = path.stat()
    except OSError as exc:
        raise KeyFileError(f"cannot read {path}: {exc.strerror}") from exc
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
