"""What the audit of a running server asks it first: in which numbers it computes."""

from __future__ import annotations

import asyncio

import pytest

from resispec.engine.audit.settings import LiveSettings
from resispec.engine.config import ConfigError
from resispec.server import live_client

URL = "http://localhost:1"


def asked(monkeypatch, body, **given):
    async def answer(*_):
        return body

    monkeypatch.setattr(live_client, "_send", answer)
    return asyncio.run(live_client.as_served(LiveSettings(URL, **given), None))


def test_the_servers_formats_are_taken(monkeypatch):
    listed = {"data": [{"id": "m", "dtype": "bfloat16", "quantization": "int8"}]}
    settings = asked(monkeypatch, listed)
    assert (settings.dtype, settings.quantization) == ("bfloat16", "int8")
    wished = asked(monkeypatch, listed, dtype="float32")
    assert (wished.dtype, wished.quantization) == ("float32", "int8")


def test_servers_that_do_not_say(monkeypatch):
    settings = asked(monkeypatch, {"data": [{"id": "m"}]})
    assert (settings.dtype, settings.quantization) == ("auto", "none")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"data": [{"quantization": "fp8"}]}, "weights are 'fp8'.*none, int8, int4"),
        ({"data": []}, "lists no model"),
        ([], "lists no model"),
    ],
)
def test_refused(monkeypatch, body, reason):
    with pytest.raises(ConfigError, match=reason):
        asked(monkeypatch, body)
