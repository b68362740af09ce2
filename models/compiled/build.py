"""Compiles in a process of its own, at the lowest priority; what comes of it is kept between starts.

::

    <cache folder>/compiled/<key>/single.pt2, begin.pt2, end.pt2
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from .spec import LayerSpec

_WORKER = "resispec.models.compiled.worker"
_SOURCES = ("region.py", "spec.py", "worker.py")


class BuildError(Exception):
    """Why compiling failed, in one line."""


class Build:
    """One compilation, or the folder that an earlier one filled."""

    def __init__(self, specs: Mapping[str, LayerSpec], root: Path) -> None:
        """specs: by function. root: the folder for all compilations."""
        self._text = json.dumps({kind: asdict(spec) for kind, spec in specs.items()}, sort_keys=True)
        self._kinds = tuple(specs)
        self._folder = root / _key(self._text)
        self._worker: subprocess.Popen[str] | None = None
        self._stopped = False
        self.cached = self._complete(self._folder)

    def run(self) -> Path:
        """The folder with a package for each function; waits until they are there. Raises BuildError."""
        if self.cached:
            return self._folder
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:
            raise BuildError(f"there is no C++ compiler ({compiler}); install one, or name it in CXX")
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            _clear_left_overs(self._folder.parent)
            temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self._folder.parent))
        except OSError as error:
            raise BuildError(f"{self._folder.parent} cannot be written: {error.strerror or error}") from error
        try:
            self._compile(temporary)
            if not self._complete(self._folder):  # another process may have been quicker
                shutil.rmtree(self._folder, ignore_errors=True)
                temporary.rename(self._folder)
        except OSError as error:
            raise BuildError(f"{self._folder} cannot be written: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return self._folder

    def discard(self) -> None:
        """Forget what cannot be loaded, so that the next start compiles again."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """End a compilation under way."""
        self._stopped = True
        if self._worker is not None:
            self._worker.kill()

    def _complete(self, folder: Path) -> bool:
        return all((folder / f"{kind}.pt2").is_file() for kind in self._kinds)

    def _compile(self, folder: Path) -> None:
        scratch = folder / "scratch"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        environment |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(scratch)}
        command = [sys.executable, "-m", _WORKER, str(folder)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as self._worker:
            if self._stopped:
                self._worker.kill()
            _, said = self._worker.communicate(self._text)
        shutil.rmtree(scratch, ignore_errors=True)
        if self._worker.returncode != 0 or not self._complete(folder):
            lines = [line for line in said.splitlines() if line.strip()]
            raise BuildError(lines[-1].strip() if lines else f"exit code {self._worker.returncode}")


def _clear_left_overs(root: Path) -> None:
    """Remove what killed processes left; nobody compiles for an hour."""
    for path in root.glob(".tmp-*"):
        if time.time() - path.stat().st_mtime > 3600:
            shutil.rmtree(path, ignore_errors=True)


def _key(specs: str) -> str:
    """Names what compiled code depends on: shapes, our functions, torch, the processor's instructions."""
    digest = hashlib.sha256(f"{specs}\n{torch.__version__}\n{_instructions()}".encode())
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:24]


def _instructions() -> str:
    """The processor's instruction sets: compiled code may use any of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{torch.backends.cpu.get_cpu_capability()} {flags}"
