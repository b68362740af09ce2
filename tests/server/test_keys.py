"""API keys from the settings and from a file, and what one key may use."""

from __future__ import annotations

import asyncio
import logging
import time

import httpx
import pytest
from pydantic import SecretStr

from resispec.engine.config import ConfigError
from resispec.engine.outputs import FinishReason
from resispec.server import keys
from resispec.server.keys import KeyFileError, KeyRing, read_keys
from resispec.server.loading import load_settings

BODY = {"prompt": "ab"}


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text("# people\nalice\n\n  bob  \n")
    return path


def test_a_file_has_a_key_a_line(file):
    assert read_keys(file) == ("alice", "bob")
    ring = KeyRing(["carol"], file)
    assert ring.required
    assert len({ring.identify(name) for name in ("alice", "bob", "carol")} - {None}) == 3
    assert ring.identify("# people") is None
    assert ring.identify("") is None
    assert not KeyRing().required


def test_names_of_holders_tell_nothing_about_keys(file):
    assert "alice" not in str(KeyRing((), file).identify("alice"))


def test_a_changed_file_is_read_again(file, tmp_path):
    ring = KeyRing((), file)
    other = tmp_path / "other"
    other.write_text("dora\n")
    other.replace(file)
    assert ring.identify("dora")
    assert ring.identify("alice") is None
    file.write_text("")  # nobody is let in, and not everybody
    assert ring.required
    assert ring.identify("dora") is None


@pytest.mark.parametrize("damage", ["gone", "binary"])
def test_a_file_that_cannot_be_read_changes_nothing(file, caplog, damage):
    ring = KeyRing((), file)
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"\xff\xfe")
    assert ring.identify("alice")
    assert "keeping the API keys" in caplog.text
    assert "alice" not in caplog.text
    file.write_text("eve\n")
    assert ring.identify("eve")
    assert ring.identify("alice") is None


def test_a_bad_file_is_refused_at_the_start(tmp_path):
    with pytest.raises(KeyFileError, match="No such file"):
        KeyRing((), tmp_path / "none")
    with pytest.raises(ConfigError, match="api_key_file.*cannot read.*No such file") as caught:
        load_settings({"api_key_file": str(tmp_path / "none")})
    assert caught.value.setting == "api_key_file"


async def test_keys_of_the_file_are_let_in(with_settings, file):
    async with with_settings(api_key_file=file) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 401
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("alice"))).status_code == 200
        file.write_text("zoe\n")
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("alice"))).status_code == 401
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("zoe"))).status_code == 200


async def test_the_log_names_who_it_was_without_the_key(with_settings, caplog):
    caplog.set_level(logging.INFO, "resispec")
    async with with_settings(api_key=[SecretStr("hush")]) as http:
        await http.post("/v1/completions", json=BODY, headers=with_key("hush"))
    [record] = [record for record in caplog.records if record.message == "request"]
    assert len(record.fields["key"]) == 16
    assert "hush" not in str(record.fields)


async def test_keys_learn_nothing_from_each_other(with_settings, engine):
    async with with_settings(api_key=TWO) as http:
        for key in ("one", "two", "one"):
            await http.post("/v1/completions", json=BODY, headers=with_key(key))
    first, second, third = (request.owner for request in engine.requests)
    assert first == third != second
    assert "one" not in first


async def refused(http: httpx.AsyncClient, key: str, words: str) -> int:
    """Seconds after which it may be tried again."""
    response = await http.post("/v1/completions", json=BODY, headers=with_key(key))
    assert response.status_code == 429
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert words in error["message"]
    return int(response.headers["retry-after"])


TWO = [SecretStr("one"), SecretStr("two")]


async def test_requests_a_minute(with_settings, monkeypatch):
    async with with_settings(api_key=TWO, key_requests_per_minute=2) as http:
        for _ in range(2):
            assert (await http.post("/v1/completions", json=BODY, headers=with_key("one"))).status_code == 200
        assert 58 <= await refused(http, "one", "2 requests") <= 60
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("two"))).status_code == 200
        text = (await http.get("/metrics")).text
        assert 'resispec_request_failure_total{model="tiny",reason="rate_limited"} 1.0' in text
        now = time.time()
        monkeypatch.setattr("time.time", lambda: now + 61)
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("one"))).status_code == 200


async def test_tokens_a_minute_count_prompts_and_answers(with_settings):
    # A request is 2 tokens of prompt and 5 of answer.
    async with with_settings(api_key=TWO, key_tokens_per_minute=8) as http:
        for _ in range(2):
            assert (await http.post("/v1/completions", json=BODY, headers=with_key("one"))).status_code == 200
        assert 58 <= await refused(http, "one", "8 tokens") <= 60
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("two"))).status_code == 200


async def test_requests_at_a_time(with_settings, engine, piece):
    engine.script = lambda _: (piece("a", (1,)), piece("b", (2,), FinishReason.STOP, delay=0.2))
    async with with_settings(api_key=TWO, key_concurrent_requests=1) as http:
        first = asyncio.create_task(http.post("/v1/completions", json=BODY, headers=with_key("one")))
        await asyncio.sleep(0.05)
        assert await refused(http, "one", "running") == 1
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("two"))).status_code == 200
        assert (await first).status_code == 200
        assert (await http.post("/v1/completions", json=BODY, headers=with_key("one"))).status_code == 200


async def test_without_keys_all_share_one(with_settings):
    async with with_settings(key_requests_per_minute=1) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        assert (await http.post("/v1/completions", json=BODY)).status_code == 429
