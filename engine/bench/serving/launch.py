"""How to start each kind of server for the same model on the same cores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import ConfigError

_NGRAM_TOKENS = 4  # drafted by a peer's own n-gram speculation, each step


@dataclass(frozen=True, slots=True)
class Host:
    """What every server is given."""

    target: str  # as the user named it
    folder: Path  # where its weights lie
    dtype: str
    max_model_len: int
    max_num_seqs: int
    threads: int
    port: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that serves, and what its requests need."""

    command: tuple[str, ...]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = False  # and so tells more of itself than others do


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server: ``KIND=PYTHON`` or ``KIND=PYTHON,MODEL``, PYTHON being one that has it installed."""

    kind: str
    python: str
    model: str | None = None  # None: the folder with the target

    def launch(self, host: Host) -> Launch:
        return PEERS[self.kind](self, host)


def parse_peer(text: str) -> Peer:
    """Raises ConfigError."""
    kind, _, rest = text.partition("=")
    python, _, model = rest.partition(",")
    if kind not in PEERS or not python:
        raise ConfigError(
            f"peer is {text!r}; use KIND=PYTHON or KIND=PYTHON,MODEL: a kind of {', '.join(PEERS)}, "
            "and the Python that has it installed",
            "peer",
        )
    return Peer(kind, python, model or None)


def own_server(host: Host, draft: str | None, more: tuple[str, ...] = ()) -> Launch:
    """This package's server; prefixes are not kept, since every repeat brings the same prompts.

    draft: None: plain decoding, without guesses from the text either.
    """
    command = [sys.executable, "-m", "resispec.server.cli", "serve", "--port", str(host.port)]
    command += ["--target", host.target, "--draft", draft or "none", "--dtype", host.dtype]
    command += ["--max-model-len", str(host.max_model_len), "--max-num-seqs", str(host.max_num_seqs)]
    command += ["--num-threads", str(host.threads), "--no-prefix-caching", "--log-level", "error", *more]
    command += [] if draft else ["--speculation", "off"]
    return Launch(tuple(command), host.port, extra={"ignore_eos": True}, is_ours=True)


def _vllm(peer: Peer, host: Host, *more: str) -> Launch:
    """The build of vLLM for CPUs, tied to all cores: left to itself it may take one."""
    command = [peer.python, "-m", "vllm.entrypoints.cli.main", "serve", peer.model or str(host.folder)]
    command += ["--port", str(host.port), "--host", "127.0.0.1", "--dtype", host.dtype]
    command += ["--max-model-len", str(host.max_model_len), "--max-num-seqs", str(host.max_num_seqs)]
    command += ["--no-enable-prefix-caching", *more]
    environment = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{host.threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Launch(tuple(command), host.port, environment, {"ignore_eos": True})


def _vllm_ngram(peer: Peer, host: Host) -> Launch:
    speculation = f'{{"method": "ngram", "num_speculative_tokens": {_NGRAM_TOKENS}, "prompt_lookup_max": 4}}'
    return _vllm(peer, host, "--speculative-config", speculation)


def _llama(peer: Peer, host: Host, speculation: str = "none") -> Launch:
    """llama.cpp in the xllamacpp wheel; it wants a GGUF file."""
    if peer.model is None:
        raise ConfigError(f"{peer.kind} wants a GGUF file: --peer {peer.kind}=PYTHON,FILE.gguf", "peer")
    script = Path(__file__).with_name("llama_server.py")
    sizes = (host.port, host.max_model_len, host.max_num_seqs, host.threads)
    command = (peer.python, str(script), peer.model, *map(str, sizes), speculation)
    extra = {"ignore_eos": True, "cache_prompt": False}
    return Launch(command, host.port, extra=extra)


PEERS: Mapping[str, Callable[[Peer, Host], Launch]] = {
    "vllm": _vllm,
    "vllm-ngram": _vllm_ngram,
    "llama.cpp": _llama,
    "llama.cpp-ngram": lambda peer, host: _llama(peer, host, "ngram"),
}
