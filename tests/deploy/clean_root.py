"""A root of its own for commands: a stand-in for a container where no Docker engine is at hand."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ETC = (
    *(
        "alternatives",
        "default",
        "group",
        "hosts",
        "ld.so.conf",
        "ld.so.conf.d",
        "login.defs",
        "nsswitch.conf",
    ),
    *("passwd", "pip.conf", "resolv.conf", "ssl/certs", "xdg"),
)


@dataclass(frozen=True)
class Stage:
    """What a later stage takes over from an earlier one."""

    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"


OF_THE_BASE = Stage({"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"})


@dataclass(frozen=True)
class CleanRoot:
    """A root with this machine's /usr, some of its /etc, and Python in /usr/local, as the base image has it.

    What is changed in it goes into ``layers``, and nothing else of this machine can be seen.
    """

    path: Path
    layers: Path
    wheels: tuple[str, ...]  # folders, read-only, at their own paths

    def run(self, command: str, stage: Stage) -> subprocess.CompletedProcess[str]:
        mounts = [
            f"mount -t overlay overlay {target} -o "
            f"lowerdir={lower},upperdir={self.layers}/{target}/upper,workdir={self.layers}/{target}/work"
            for lower, target in (("/usr", "usr"), (sys.base_prefix, "usr/local"))
        ]
        mounts += ["mount --rbind /proc proc", "mount --rbind /dev dev"]
        mounts += [f"mount --bind -o ro {path} .{path}" for path in self.wheels]
        inside = f"cd {stage.folder} && {command}"
        variables = [f"{name}={value}" for name, value in stage.environment.items()]
        enter = ["chroot", f"--userspec={stage.user}", ".", "env", "-i", *variables, "sh", "-c", inside]
        script = " && ".join([*mounts, f"exec {shlex.join(enter)}"])
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )


def wheel_folders() -> list[str]:
    """Where pip is told to look for wheels on this machine, on top of the index."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {path for value in re.findall(r"find-links='(.*)'", listed) for path in value.split()}
    return sorted(path for path in found if Path(path).is_dir())


def make(folder: Path) -> CleanRoot:
    """A root in ``folder``. Raises OSError where mounting is not allowed."""
    path, layers = folder / "root", folder / "layers"
    for name in ("usr", "proc", "dev", "tmp", "root", "home", "opt", "var/cache", "var/tmp"):
        (path / name).mkdir(parents=True)
    for target in ("usr", "usr/local"):
        for name in ("upper", "work"):
            (layers / target / name).mkdir(parents=True)
    (path / "tmp").chmod(0o1777)
    for name in ("bin", "lib", "lib64", "sbin"):
        (path / name).symlink_to(f"usr/{name}")
    for name in ETC:
        if (source := Path("/etc", name)).is_dir():
            shutil.copytree(source, path / "etc" / name, symlinks=True)
        elif source.exists():
            (path / "etc").mkdir(exist_ok=True)
            shutil.copyfile(source, path / "etc" / name)
    wheels = tuple(wheel_folders())
    for name in wheels:
        (path / name.lstrip("/")).mkdir(parents=True)
    found = CleanRoot(path, layers, wheels)
    named = "command -v python || ln -s python3 /usr/local/bin/python"  # not everywhere
    tried = found.run(f"ldconfig && {{ {named}; }} && python --version", OF_THE_BASE)
    if tried.returncode != 0 and "mount" in tried.stderr:
        raise OSError(tried.stderr)
    assert tried.returncode == 0, tried.stderr
    return found
