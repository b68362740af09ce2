"""What a server of ours tells of itself beyond OpenAI's dialect."""

from __future__ import annotations

import re
import time

import httpx2

from ..contenders import BenchError

_COMPILE_SECONDS = 600.0
_PHASE = re.compile(r'^resispec_step_seconds_sum\{[^}]*phase="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


class OwnServer:
    """Asked between runs, never within one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def settle(self) -> None:
        """Wait until the target runs as it is going to. Raises BenchError if it cannot be compiled."""
        deadline = time.monotonic() + _COMPILE_SECONDS
        while time.monotonic() < deadline:
            compilation = self._ask("/v1/models").json()["data"][0]["compilation"]
            # Off with a note: asked for, and of no use here.
            if compilation["state"] == "failed" or (compilation["state"] == "off" and compilation["note"]):
                raise BenchError(compilation["note"])
            if compilation["state"] != "building":
                return
            time.sleep(0.5)
        raise BenchError(f"the target was not compiled after {_COMPILE_SECONDS:.0f} s")

    def phase_seconds(self) -> dict[str, float]:
        """Seconds that its steps have spent in each phase since it started."""
        return {phase: float(seconds) for phase, seconds in _PHASE.findall(self._ask("/metrics").text)}

    def _ask(self, path: str) -> httpx2.Response:
        try:
            answer = httpx2.get(self._url + path, timeout=60.0, trust_env=False)
            return answer.raise_for_status()
        except httpx2.HTTPError as error:
            raise BenchError(f"{path} gave no answer ({type(error).__name__}: {error})") from error
