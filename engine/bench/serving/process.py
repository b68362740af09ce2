"""A server's process group: started, put to sleep while others are measured, woken, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

import httpx2
import psutil

from ..contenders import BenchError

_READY_SECONDS = 300.0
_STOP_SECONDS = 15.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A command that listens on a port of this machine. Its output goes to a file that ends with it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], port: int) -> None:
        """Raises BenchError if the command cannot be started. environment: added to this process's."""
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `stop`
        try:
            self._process = subprocess.Popen(
                list(command),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that signals reach all of its processes, and ours none
            )
        except OSError as error:
            self._log.close()
            raise BenchError(f"{command[0]} cannot be started: {error.strerror or error}") from error

    def wait_ready(self, timeout: float = _READY_SECONDS) -> str:
        """The name of the model it serves. Raises BenchError with its last words if it does not start."""
        deadline = time.monotonic() + timeout
        with httpx2.Client(base_url=self.url, timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if (code := self._process.poll()) is not None:
                    raise BenchError(f"the server ended with exit code {code}: {self._last_words()}")
                with contextlib.suppress(httpx2.HTTPError, ValueError, KeyError, IndexError):
                    answer = client.get("/v1/models")
                    if answer.status_code == 200:
                        return str(answer.json()["data"][0]["id"])
                time.sleep(0.2)
        raise BenchError(f"the server was not ready after {timeout:.0f} s: {self._last_words()}")

    def run(self, awake: bool) -> None:
        """Let it run, or stop all of its threads where they are, so that it takes no time from others."""
        self._signal(signal.SIGCONT if awake else signal.SIGSTOP)

    def memory(self) -> int | None:
        """Bytes that are resident because of it; pages shared by its processes count once."""
        total = 0
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._process.pid)
            for process in [root, *root.children(recursive=True)]:
                full = process.memory_full_info()
                total += getattr(full, "pss", full.rss)
        return total or None

    def stop(self) -> None:
        """End it, by force if it does not go. Idempotent."""
        if self._log.closed:
            return
        for name in (signal.SIGCONT, signal.SIGTERM):
            self._signal(name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._signal(signal.SIGKILL)  # what is left of the group
        self._process.wait()
        self._log.close()

    def _signal(self, name: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, name)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-3:])[-600:] or "it said nothing"
