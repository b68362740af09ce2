"""Running the server: from the settings to the exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from resispec.engine.config import ConfigError
from resispec.engine.outputs import EngineInfo

from .app import create_app
from .exit_codes import ExitCode
from .lifecycle import Phase, Server
from .logging import configure
from .prompts import load_tokenizer
from .settings import ServerSettings

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5  # for connections to close once nothing is in flight


class AddressError(Exception):
    """The address cannot be listened on; says why and what would work."""


def serve(settings: ServerSettings) -> ExitCode:
    """Serve until a signal or the engine's death. Prints what a person at a terminal wants to know."""
    configure(settings.log_level)
    # Without these, steps beside a busy process stalled; torch reads them in the engine's process.
    if not any(name.startswith("OMP_") for name in os.environ):
        os.environ.update(OMP_PROC_BIND="true", OMP_PLACES="cores")
    try:
        # Before the models, which take long to load.
        listener = bind(settings.host, settings.port)
    except AddressError as exc:
        return _fail(exc, ExitCode.ADDRESS)
    # Here and not above: the command line must not wait for torch.
    from resispec.engine.process import EngineDied
    from resispec.models.base import ModelError

    with listener, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_serve(settings, listener))
        except ConfigError as exc:
            return _fail(exc, ExitCode.CONFIGURATION)
        except ModelError as exc:
            return _fail(exc, ExitCode.MODEL)
        except AddressError as exc:
            return _fail(exc, ExitCode.ADDRESS)
        except EngineDied as exc:
            return _fail(exc, ExitCode.ERROR)
        except KeyboardInterrupt:
            return ExitCode.ERROR


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening. Raises AddressError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise AddressError(f"host: {host!r} is no address: {exc.strerror}; try 127.0.0.1 or 0.0.0.0") from exc
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as exc:
        listener.close()
        raise _cannot_listen(host, port, exc) from exc
    return listener


def _cannot_listen(host: str, port: int, exc: OSError) -> AddressError:
    return AddressError(f"cannot listen on {host} port {port}: {exc.strerror}; try another --port or --host")


async def _serve(settings: ServerSettings, listener: socket.socket) -> ExitCode:
    from resispec.engine.process import EngineProcess

    client = await EngineProcess.start(settings.engine_config())
    try:
        tokenizer = await asyncio.to_thread(load_tokenizer, client.info.target_path)
        app = create_app(client, tokenizer, settings)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        lifecycle = app.state.resispec.lifecycle
        text = banner(client.info, settings, listener.getsockname()[1])
        server = Server(config, client, lifecycle, announce=lambda: print(text, flush=True))  # noqa: T201
        try:
            await server.serve([listener])
        except OSError as exc:
            # Bound, and yet another socket came first: several may be bound to a port, one may listen.
            raise _cannot_listen(settings.host, settings.port, exc) from exc
        return ExitCode.ERROR if lifecycle.phase is Phase.FAILED else ExitCode.OK
    finally:
        # It is on its way out; another signal now would leave the engine behind.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        await client.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Uvloop's loop where there is one: less time per chunk of a stream."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def banner(info: EngineInfo, settings: ServerSettings, port: int) -> str:
    """What `serve` prints when it is ready: address, models, memory, and a request to try."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)  # noqa: S104
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    address = f"http://{host}:{port}"
    draft = f"draft {info.draft}, verifier {info.verifier}" if info.draft else "no draft"
    memory = info.kv_rows * info.kv_bytes_per_row / (1 << 20)
    headers = "-H 'Content-Type: application/json'"
    if settings.api_key:
        headers += " -H 'Authorization: Bearer KEY'"
    messages = [{"role": "user", "content": "Hello"}]
    body = shlex.quote(json.dumps({"model": settings.model_names[0], "messages": messages}))
    lines = [
        f"ResiSpec is ready on {address}",
        f"  models  target {info.target}, {draft} ({info.dtype} on {info.device})",
        f"  memory  {memory:.0f} MiB for the KV of {info.kv_rows} tokens; context {info.max_model_len}",
        *(f"  note    {note}" for note in info.notes),
        f"  try     curl {address}/v1/chat/completions {headers} -d {body}",
    ]
    return "\n".join(lines)


def _fail(exc: Exception, code: ExitCode) -> ExitCode:
    print(f"resispec: {exc}", file=sys.stderr)  # noqa: T201
    return code
