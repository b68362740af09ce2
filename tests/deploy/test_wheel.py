"""The wheel holds every module of the rooms and what they ship, and works where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("server", "engine", "models")
DATA = {"assets", "page", "templates"}  # folders shipped with all they hold

pytestmark = pytest.mark.slow


def shipped(path: Path) -> bool:
    return path.suffix in (".py", ".cpp", ".h") or path.name == "py.typed" or bool(DATA & set(path.parts))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that left-overs of other builds cannot get into it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(out),
    ]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    [path] = out.glob("resispec-*.whl")
    return path


def test_holds_what_the_folders_hold(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    expected = {
        f"resispec/{name}"
        for name in tracked.stdout.splitlines()
        if (ROOT / name).is_file() and shipped(Path(name))
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("resispec/")}
    built = {name for name in held if "/native/_" in name and name.endswith(".so")}
    assert held - built == expected
    with_kernels = {name.rpartition("/")[0] for name in built}
    both = {"resispec/engine/native", "resispec/models/native"}
    assert with_kernels == both or not shutil.which("g++"), "kernels are built where there is a compiler"
    assert len(expected) > 20


def test_command_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
        assert "resispec = resispec.server.cli:main" in archive.read(entry_points).decode()
        assert any(name.endswith("licenses/LICENSE") for name in names)


def test_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, its own modules are imported, not the checkout's."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import resispec.engine.config as c, resispec.server.cli; print(c.__file__)"
    # -S and an explicit path: no .pth file may bring the editable install back.
    path = [str(tmp_path), *(entry for entry in sys.path if entry.endswith("-packages"))]
    program = f"import sys; sys.path[:0] = {path!r}; {code}"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == str(tmp_path / "resispec" / "engine" / "config.py"), result.stderr
