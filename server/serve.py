"""Running the server: from the settings to the exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import shlex
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from resispec.engine.config import DEFAULT, DEFAULT_NAME, ConfigError
from resispec.engine.openmp import leave_first_core, openmp_for_engine
from resispec.engine.outputs import EngineInfo
from resispec.engine.process import EngineDied, EngineProcess

from .app import create_app
from .exit_codes import ExitCode
from .lifecycle import Phase, Server
from .listen import AddressError, bind, cannot_listen
from .logging import configure
from .prompts import load_tokenizer
from .settings import ServerSettings
from .without_torch import without_torch

# Longer than clients and load balancers keep idle connections: who sends must be the one who closes.
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 5  # for connections to close once nothing is in flight


def serve(settings: ServerSettings) -> ExitCode:
    """Serve until a signal or the engine's death. Prints what a person at a terminal wants to know."""
    configure(settings.log_level)
    try:
        # Before the models, which take long to load.
        listener = bind(settings.host, settings.port)
    except AddressError as exc:
        return _fail(exc, ExitCode.ADDRESS)
    with listener, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_serve(settings, listener))
        except ConfigError as exc:
            return _fail(exc, ExitCode.CONFIGURATION)
        except AddressError as exc:
            return _fail(exc, ExitCode.ADDRESS)
        except EngineDied as exc:
            return _fail(exc, ExitCode.ERROR)
        except (KeyboardInterrupt, asyncio.CancelledError):
            return ExitCode.OK  # told to stop while loading
        except Exception as exc:
            # Not before: it imports torch, see `openmp_for_engine`.
            from resispec.models.base import ModelError

            if isinstance(exc, ModelError):
                return _fail(exc, ExitCode.MODEL)
            raise


async def _serve(settings: ServerSettings, listener: socket.socket) -> ExitCode:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    # Until the server handles signals itself. SIGINT does the same without our help.
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    with openmp_for_engine() as tied:
        client = await EngineProcess.start(settings.engine_config())
    if tied:
        leave_first_core()
    try:
        with without_torch():
            tokenizer = await asyncio.to_thread(
                load_tokenizer, client.info.target_path, settings.chat_template
            )
        app = create_app(client, tokenizer, settings)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        lifecycle = app.state.resispec.lifecycle
        text = banner(client.info, settings, listener.getsockname()[1])
        server = Server(config, client, lifecycle, announce=lambda: print(text, flush=True))  # noqa: T201
        loop.remove_signal_handler(signal.SIGTERM)
        gc.freeze()  # what is loaded stays; a collection that looks through it would hold up every stream
        try:
            await server.serve([listener])
        except OSError as exc:
            # Bound, and yet another socket came first: several may be bound to a port, one may listen.
            raise cannot_listen(settings.host, settings.port, exc) from exc
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
    target = DEFAULT_NAME if info.target == DEFAULT else info.target
    name = "shipped head" if info.draft == DEFAULT else info.draft
    draft = f"draft {name}, verifier {info.verifier}" if info.draft else "no draft"
    memory = info.kv_rows * info.kv_bytes_per_row / (1 << 20)
    headers = "-H 'Content-Type: application/json'"
    if settings.api_key or settings.api_key_file:
        headers += " -H 'Authorization: Bearer KEY'"
    messages = [{"role": "user", "content": "Hello"}]
    body = shlex.quote(json.dumps({"model": settings.model_names[0], "messages": messages}))
    lines = [
        f"ResiSpec is ready on {address}",
        f"  models  target {target}, {draft} ({info.number_format} on {info.device})",
        f"  memory  {memory:.0f} MiB for the KV of {info.kv_rows} tokens; context {info.max_model_len}",
        *(f"  note    {note}" for note in (*info.notes, info.compilation.note) if note),
        f"  page    {address}/ in a browser shows how tokens are made",
        f"  try     curl {address}/v1/chat/completions {headers} -d {body}",
    ]
    return "\n".join(lines)


def _fail(exc: Exception, code: ExitCode) -> ExitCode:
    print(f"resispec: {exc}", file=sys.stderr)  # noqa: T201
    return code
