"""Real servers in processes of their own, on tiny random models."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import torch
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START_SECONDS = 300  # the default model may have to be fetched
STOP_SECONDS = 30

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass
class ServerProcess:
    """A running ``resispec serve``."""

    process: subprocess.Popen[str]
    url: str
    stdout: list[str]
    stderr: list[str]
    reader: threading.Thread

    @property
    def pids(self) -> list[int]:
        """The server's process and its children, the engine among them."""
        main = self.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [main, *map(int, children)]

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.close_pipes()

    def close_pipes(self) -> None:
        self.reader.join(STOP_SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def metric(self, name: str) -> float:
        """The sum over all series of one metric."""
        text = httpx.get(f"{self.url}/metrics").text
        values = re.findall(rf"^resispec_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in values)

    def wait_for_metric(self, name: str, wanted: Callable[[float], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not wanted(value := self.metric(name)):
            assert time.monotonic() < deadline, f"{name} stayed at {value}"
            time.sleep(0.05)


def start(*arguments: str, **environment: str) -> ServerProcess:
    """Start a server on a free port and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "resispec.server.cli", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    stdout: list[str] = []
    stderr: list[str] = []
    assert process.stderr is not None
    assert process.stdout is not None
    # Read all the time: a full pipe would stop the server.
    reader = threading.Thread(target=stderr.extend, args=(process.stderr,), daemon=True)
    reader.start()
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    for line in process.stdout:
        stdout.append(line)
        if "try " in line:
            break
    watchdog.cancel()
    url = re.search(r"http://\S+", stdout[0]) if stdout else None
    server = ServerProcess(process, url.group() if url else "", stdout, stderr, reader)
    if url is None:
        server.stop()
        raise AssertionError(f"no server: {''.join(stderr)}")
    return server


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers for one test, and stops them after it."""
    with contextlib.ExitStack() as stack:

        def start_for_test(*arguments: str, **environment: str) -> ServerProcess:
            server = start(*arguments, **environment)
            stack.callback(server.stop)
            return server

        yield start_for_test


@pytest.fixture(scope="session")
def start_server() -> Callable[..., ServerProcess]:
    """Starts a server; whoever asks for one stops it."""
    return start


def make_model(
    folder: Path, noise: float, *, template: str = TEMPLATE, markers: tuple[str, ...] = ()
) -> Path:
    """A random Llama over bytes; with little ``noise``, models much like each other.

    markers: special tokens beside the one that ends an answer.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)} | {"<eos>": 256}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(markers)})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257 + len(markers),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.15,
        eos_token_id=256,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(target, draft): folders of two similar models."""
    root = tmp_path_factory.mktemp("models")
    return str(make_model(root / "target", 0.0)), str(make_model(root / "draft", 0.02))


MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'user' %}[INST]{{ message.content }}[/INST]"
    "{% elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]"
    "{% elif message.tool_calls %}[TOOL_CALLS]"
    "{{ message.tool_calls | map(attribute='function') | list | tojson }}"
    "{% else %}{{ message.content }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    'Respond in the format {"name": function name, "parameters": arguments}.{% endif %}'
    "{% for message in messages %}"
    "{{ 'ipython' if message.role == 'tool' else message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}|'
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
TOOL_MODELS: dict[str, dict[str, Any]] = {
    "hermes": {},  # the server brings the template
    "mistral": {"template": MISTRAL, "markers": ("[TOOL_CALLS]",)},
    "llama3": {"template": LLAMA3, "markers": ("<|python_tag|>",)},
}


@pytest.fixture(scope="session")
def tool_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ServerProcess]]:
    """Servers of models that write calls in the format named, each started when it is first asked for."""
    root = tmp_path_factory.mktemp("tool-models")
    servers: dict[str, ServerProcess] = {}

    def serve(form: str) -> ServerProcess:
        if form not in servers:
            target, draft = (
                str(make_model(root / form / name, noise, **TOOL_MODELS[form]))
                for name, noise in (("target", 0.0), ("draft", 0.02))
            )
            own = ("--chat-template", "hermes") if form == "hermes" else ()
            servers[form] = start(*_tiny_arguments(target, draft), *own)
        return servers[form]

    yield serve
    for server in servers.values():
        assert server.stop() == 0, "".join(server.stderr)


@pytest.fixture(scope="session")
def tiny_arguments(tiny_models: tuple[str, str]) -> tuple[str, ...]:
    """The flags of a small server on the tiny pair."""
    return _tiny_arguments(*tiny_models)


def _tiny_arguments(target: str, draft: str) -> tuple[str, ...]:
    return (
        *("--target", target, "--draft", draft, "--served-model-name", "tiny", "--dtype", "float32"),
        *("--device", "cpu", "--num-threads", "1", "--kv-memory", "64MiB", "--offline"),
        *("--speculation", "fixed"),  # a draft as large as its target would be given up
    )


@pytest.fixture(scope="session")
def tiny_server(tiny_arguments: tuple[str, ...]) -> Iterator[ServerProcess]:
    """One server for all tests that leave it as they found it."""
    server = start(*tiny_arguments)
    yield server
    assert server.stop() == 0, "".join(server.stderr)


class Visits:
    """Pages of the server in a browser, and what happened on them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.seen: list[str] = []  # addresses asked for
        self.complaints: list[str] = []  # warnings and errors on the console, and faults of scripts
        self.contexts: list[BrowserContext] = []
        self._refusals = False

    def __call__(self, url: str, *, refusals: bool = False, **options: Any) -> Page:
        """Open ``url`` in a browser of its own. refusals: the server is to refuse something."""
        self._refusals |= refusals
        context = self._browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.seen.append(request.url))
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)
        return page

    def _listen(self, message: ConsoleMessage) -> None:
        # A browser reports every answer that is an error, asked for or not.
        expected = self._refusals and "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(message.text)


@pytest.fixture(scope="module")  # while it is open, no test of the same process can have an event loop
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    sandbox = os.geteuid() != 0  # root cannot have it
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox) as started,
    ):
        yield started


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    """Opens the page, for one test. Nothing may go wrong on it, and nothing may go elsewhere."""
    visits = Visits(browser)
    yield visits
    for context in visits.contexts:
        context.close()
    assert visits.complaints == []
    assert {urlsplit(url).hostname for url in visits.seen} <= {"127.0.0.1"}
