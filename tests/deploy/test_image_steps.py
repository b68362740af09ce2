"""Runs the image's recipe without Docker: its steps, in order, in a root of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .clean_root import OF_THE_BASE, CleanRoot, Stage, make, wheel_folders

ROOT = Path(__file__).parents[2]
WITHOUT_EFFECT = {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "VOLUME"}  # while building

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def instructions() -> Iterator[tuple[str, str]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not re.match(r"\s*#", line)]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[CleanRoot]:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mounting and chroot need root and unshare")
    try:
        yield make(tmp_path)
    except OSError as error:
        pytest.skip(f"this machine does not let us mount: {error}")
    finally:
        shutil.rmtree(tmp_path)  # gigabytes, which pytest would keep


def copy(root: CleanRoot, words: list[str], stage: Stage) -> None:
    """COPY from the context, of which what git ignores is no part."""
    modes = [word.removeprefix("--chmod=") for word in words if word.startswith("--chmod=")]
    *sources, target = [word for word in words if not word.startswith("--")]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *sources]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    context = root.path / "tmp" / "context"
    for name in listed:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, context / name)
    for source in sources:
        if (ROOT / source).is_dir():
            step(root, f"cp -rT /tmp/context/{source} {target}", stage)
        else:
            step(root, f"install -m {modes[0] if modes else '644'} /tmp/context/{source} {target}", stage)
    shutil.rmtree(context)


def step(root: CleanRoot, command: str, stage: Stage) -> None:
    result = root.run(command, stage)
    assert result.returncode == 0, f"{command}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"


def follow(root: CleanRoot, name: str, rest: str, stage: Stage) -> Stage:
    """Carry out one instruction; the stage as it is for the next one."""
    if name in ("ENV", "ARG"):
        values = dict(word.split("=", 1) for word in shlex.split(rest))
        old = stage.environment.get("PATH", "")
        values = {key: value.replace("$PATH", old) for key, value in values.items()}
        return replace(stage, environment={**stage.environment, **values, **local_wheels(values)})
    if name == "WORKDIR":
        (root.path / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return replace(stage, folder=rest)
    if name == "USER":
        return replace(stage, user=rest)
    if name == "COPY":
        words = shlex.split(rest)
        if words[0].startswith("--from="):  # all stages share one root
            assert words[1] == words[2]
            step(root, f"test -e {words[1]}", stage)
        else:
            copy(root, words, stage)
    elif name == "RUN" and rest.startswith("apt-get "):
        assert "g++" in rest
        assert shutil.which("g++"), "this machine's packages are those of the root"
    elif name == "RUN":
        bound = re.match(r"--mount=type=bind,from=\w+,source=(\S+),target=(\S+) ", rest)
        assert bound is None or bound.group(1) == bound.group(2)
        step(root, rest[bound.end() :] if bound else rest, stage)
    else:
        assert name in WITHOUT_EFFECT, name
    return stage


def local_wheels(values: dict[str, str]) -> dict[str, str]:
    """Instead of an index of CPU builds, the folders with wheels of this machine, if they have it."""
    folders = wheel_folders()
    if "TORCH_INDEX" in values and any(list(Path(folder).glob("torch-*+cpu-*.whl")) for folder in folders):
        return {"TORCH_INDEX": "file:///nowhere", "PIP_FIND_LINKS": " ".join(folders)}
    return {}


def build(root: CleanRoot) -> Stage:
    stages: dict[str, Stage] = {}
    stage, current = Stage(), ""
    for name, rest in instructions():
        if name == "FROM":
            base, _, current = rest.partition(" AS ")
            stage = stages.get(base, OF_THE_BASE)
        else:
            stage = follow(root, name, rest, stage)
        stages[current] = stage
    return stage


def test_the_steps_run_and_the_result_works(root: CleanRoot) -> None:
    stage = build(root)
    stage = replace(stage, environment={**stage.environment, "HOME": "/home/resispec"})
    version = root.run("resispec-entrypoint version", stage)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", version.stdout), version.stderr
    code = "import torch, resispec.engine.build as built, resispec.server.serve; print(built.__file__)"
    loaded = root.run(f"python -c {shlex.quote(code)}", stage)
    assert loaded.stdout.startswith("/opt/resispec/lib/"), loaded.stderr
    step(root, "test -w /var/cache/resispec && ! test -w /opt/resispec", stage)
    installed = set(re.findall(r"^\S+==[^+\s]+", root.run("pip freeze", stage).stdout, re.MULTILINE))
    locked = {line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert len(installed) > 30
    assert {line.lower().replace("_", "-") for line in installed} <= locked
    assert "triton" not in "".join(installed), "this is not the build of PyTorch for CPUs"
    unhealthy = root.run("python /usr/local/bin/resispec-healthcheck", stage)
    assert unhealthy.returncode == 1
    assert "/ready" in unhealthy.stderr
