"""The server as a process: how it starts, refuses, drains and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = pytest.mark.slow

LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "speculation": {"enabled": False}}


def events(lines):
    """The decoded events of a stream, up to [DONE]."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "resispec.server.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def children_of(pid: int, pattern: str = ".") -> list[str]:
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", pattern], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


def wait_until_gone(pids: list[str]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.1)


def test_the_banner_and_its_curl(tiny_server):
    assert tiny_server.url in tiny_server.stdout[0]
    assert any("draft" in line for line in tiny_server.stdout)
    assert any("curl" in line for line in tiny_server.stdout)


def test_health_and_metrics(tiny_server):
    assert httpx.get(f"{tiny_server.url}/ready").json() == {"status": "ready"}
    before = tiny_server.metric("request_success_total")
    httpx.post(
        f"{tiny_server.url}/v1/completions", json={"prompt": "abc", "max_tokens": 8}
    ).raise_for_status()
    tiny_server.wait_for_metric("request_success_total", lambda value: value == before + 1)
    assert tiny_server.metric("generation_tokens_total") > 0
    assert tiny_server.metric("num_requests_running") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_server_beside_its_engine_goes_without_torch(serve, tiny_arguments):
    def has_torch(pid):
        return any("libtorch" in area.path for area in psutil.Process(pid).memory_maps())

    started = serve(*tiny_arguments)  # of its own: laws that the page asks for are made with torch
    server, *others = started.pids
    assert not has_torch(server)
    assert any(map(has_torch, others))
    assert "PyTorch" not in "".join(started.stderr)


def test_a_disconnect_frees_the_engine(tiny_server):
    body = LONG | {"n": 8}
    aborted = tiny_server.metric("request_success_total")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{tiny_server.url}/v1/completions", json=body, timeout=0.2)
    tiny_server.wait_for_metric("num_requests_running", lambda value: value == 0)
    assert tiny_server.metric("kv_cache_usage_ratio") == 0
    assert tiny_server.metric("request_success_total") == aborted + 8


def test_a_disconnect_from_a_stream_frees_the_engine(tiny_server):
    body = LONG | {"n": 8, "stream": True}
    with httpx.stream("POST", f"{tiny_server.url}/v1/completions", json=body) as response:
        next(events(response.iter_lines()))
    tiny_server.wait_for_metric("num_requests_running", lambda value: value == 0)
    assert tiny_server.metric("kv_cache_usage_ratio") == 0


def test_sigterm_lets_a_stream_finish(serve, tiny_arguments):
    server = serve(*tiny_arguments)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG | {"stream": True}) as response:
        chunks = events(response.iter_lines())
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        rest = list(chunks)
    assert rest[-1]["choices"][0]["finish_reason"] == "length"
    assert server.stop() == 0


def test_sigterm_aborts_after_the_drain_timeout(serve, tiny_arguments):
    server = serve(*tiny_arguments, "--drain-timeout", "0")
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=LONG | {"stream": True, "n": 8}
    ) as response:
        chunks = events(response.iter_lines())
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        rest = list(chunks)
    assert "abort" in {chunk["choices"][0]["finish_reason"] for chunk in rest}
    assert server.stop() == 0


def test_the_engines_death_ends_answers_and_server(serve, tiny_arguments):
    server = serve(*tiny_arguments)
    children = children_of(server.process.pid, "multiprocessing.spawn")
    assert len(children) == 1
    with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG | {"stream": True}) as response:
        chunks = events(response.iter_lines())
        next(chunks)
        subprocess.run(["kill", "-KILL", children[0]], check=True)
        rest = list(chunks)
    assert "error" in rest[-1]
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert server.process.wait(15) == 1


def test_exit_codes(tmp_path, tiny_arguments):
    result = run("serve", "--port", "0", "--target", str(tmp_path), "--draft", "none", "--offline")
    assert result.returncode == 3, result.stderr
    assert str(tmp_path) in result.stderr
    assert "Traceback" not in result.stderr
    result = run("serve", "--port", "0", *tiny_arguments, "--kv-memory", "1KiB")
    assert result.returncode == 2, result.stderr
    assert "kv_memory" in result.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading_ends_it_quietly(tiny_arguments, signum):
    with subprocess.Popen(
        [sys.executable, "-m", "resispec.server.cli", "serve", "--port", "0", *tiny_arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs the tests in the background may ignore it, and hand that down.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        # The engine's process exists: it is loading.
        while not (children := children_of(process.pid)):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signum)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in stderr
    wait_until_gone(children)


def test_no_engine_is_left_behind(serve, tiny_arguments):
    server = serve(*tiny_arguments)
    children = children_of(server.process.pid)
    assert children
    server.process.kill()
    server.process.wait(10)
    wait_until_gone(children)


def test_live_figures_in_a_terminal(tiny_server):
    httpx.post(f"{tiny_server.url}/v1/completions", json={"prompt": "abc", "max_tokens": 4})
    shown = run("top", tiny_server.url, "--once", "--interval", "0.2")
    assert shown.returncode == 0, shown.stderr
    assert "tiny, draft" in shown.stdout
    assert "0 running, 0 waiting" in shown.stdout
