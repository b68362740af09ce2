"""The image's health check against a small HTTP server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker" / "healthcheck.py"


class Handler(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def check(port: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RESISPEC_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_follows_ready(port: int, status: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "status", status)
    assert check(port).returncode == code


def test_no_server() -> None:
    result = check(1)
    assert result.returncode == 1
    assert "/ready" in result.stderr
