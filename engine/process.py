"""An engine in a process of its own, seen from an asyncio loop.

The engine's process owns the models and the cores; a busy event loop beside it cannot stall a step.
Plain values travel over two pipes. By one go requests and aborts in, pickled, and out what the engine is
when it is ready, or why it is not. By the other goes one `StepResult` a step out, by `Wire`. The loop writes
and reads without threads: one in between has to be woken, and then waits for the loop to let go of Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import IO, Any

from .client import Deliver
from .config import ConfigError, EngineConfig
from .heap import trim_heap
from .outputs import EngineInfo, FinishReason, RequestOutput, StepResult, StepStats, Usage
from .request import Request, RequestError
from .wire import Frames, Rejected, Wire, frame

_CLOSE_TIMEOUT = 10.0  # seconds a closing engine gets before it is killed
_READ = 1 << 16  # bytes, at most, that are read at a time


class EngineDied(RuntimeError):  # noqa: N818  an event, named as one
    """The engine's process ended while it was needed."""


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not start. ``kind``: config, model or other."""

    kind: str
    message: str
    setting: str | None = None


class _Results(asyncio.Protocol):
    """Reads what the engine sends. ended: called when nothing more can come."""

    def __init__(self, dispatch: Callable[[StepResult | Rejected], None], ended: Callable[[], None]) -> None:
        self._wire = Wire()
        self._dispatch = dispatch
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        for message in self._wire.feed(data):
            self._dispatch(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._ended()


class EngineProcess:
    """An `EngineClient` whose engine runs in a child process."""

    def __init__(self, process: Any, connection: Connection, info: EngineInfo) -> None:
        self._process = process
        self._connection = connection
        self._info = info
        self._healthy = True
        self._closing = False
        self._open: dict[str, Deliver] = {}
        self._listeners: list[Callable[[StepStats], None]] = []
        self._requests: asyncio.WriteTransport | None = None
        self._pipe = -1  # its descriptor
        self._results: asyncio.BaseTransport | None = None

    async def connect(self, results: Connection) -> None:
        """From now on send requests, and take what comes from ``results`` until it ends.

        results: its other end has the engine's process.
        """
        loop = asyncio.get_running_loop()
        pipe = _file(self._connection, "wb")
        self._pipe = pipe.fileno()
        self._requests, _ = await loop.connect_write_pipe(asyncio.Protocol, pipe)
        self._results, _ = await loop.connect_read_pipe(
            lambda: _Results(self._dispatch, self._lost), _file(results, "rb")
        )

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineProcess:
        """Start the process and wait until it is ready to serve.

        Raises ConfigError or models.ModelError with the engine's own message, EngineDied otherwise.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        results, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=_run_engine, args=(config, theirs, writer), name="resispec-engine", daemon=True
        )
        process.start()
        theirs.close()
        writer.close()
        try:
            answer = await asyncio.to_thread(ours.recv)
        except EOFError:
            process.join()
            raise EngineDied(
                f"the engine ended with exit code {process.exitcode} while it was starting"
            ) from None
        except BaseException:
            process.kill()
            raise
        if isinstance(answer, Failed):
            process.join()
            raise _as_error(answer)
        client = cls(process, ours, answer)
        await client.connect(results)
        return client

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def healthy(self) -> bool:
        return self._healthy

    def generate(self, request: Request, deliver: Deliver) -> Callable[[], None]:
        if request.request_id in self._open:
            raise RequestError(f"a request with id {request.request_id!r} is already running", "request_id")
        self._open[request.request_id] = deliver
        if self._healthy:
            self._send(request)
        else:
            self._fail(request.request_id)
        return partial(self._abort, request.request_id, deliver)

    def on_stats(self, listener: Callable[[StepStats], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._send(Close())
        await asyncio.to_thread(self._process.join, _CLOSE_TIMEOUT)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)
        self._lost()

    def _abort(self, request_id: str, deliver: Deliver) -> None:
        if self._open.get(request_id) is not deliver:  # it has ended, and another may have its name
            return
        del self._open[request_id]
        if self._healthy:
            self._send(Abort(request_id))

    def _send(self, message: Request | Abort | Close) -> None:
        # An engine that is gone is noticed by the end of its results, which ends all requests.
        if self._requests is None or self._requests.is_closing():
            return
        data = memoryview(framed(message))
        # At once, and not at the end of the loop's turn, as the transport may: in it more requests are read.
        # While the engine is in a step the pipe may be full; then the transport keeps the rest.
        if not self._requests.get_write_buffer_size():
            with contextlib.suppress(OSError):
                data = data[os.write(self._pipe, data) :]
        if data:
            self._requests.write(data)

    def _dispatch(self, message: StepResult | Rejected) -> None:
        if isinstance(message, Rejected):
            deliver = self._open.pop(message.request_id, None)
            if deliver is not None:
                deliver(RequestError(message.message, message.param))
            return
        for output in message.outputs:
            deliver = self._open.get(output.request_id)
            if deliver is None:  # aborted, while the engine was in the step
                continue
            if output.finish_reason is not None:
                del self._open[output.request_id]
            deliver(output)
        if message.stats.compilation is not None:
            self._info = replace(self._info, compilation=message.stats.compilation)
        for listener in self._listeners:
            listener(message.stats)

    def _lost(self) -> None:
        """The engine is gone: end every request that is still open."""
        if not self._healthy:
            return
        self._healthy = False
        if self._requests is not None and not self._requests.is_closing():
            self._requests.abort()
        if self._results is not None:
            self._results.close()
        for request_id in list(self._open):
            self._fail(request_id)

    def _fail(self, request_id: str) -> None:
        self._open.pop(request_id)(
            RequestOutput(
                request_id,
                "",
                (),
                Usage(0, 0),
                FinishReason.ERROR,
                error="the engine has stopped; try again later",
            )
        )


def _file(connection: Connection, mode: str) -> IO[bytes]:
    """The descriptor as a file, for a loop, which makes it non-blocking. Closes the connection."""
    file: IO[bytes] = os.fdopen(os.dup(connection.fileno()), mode, buffering=0)
    connection.close()
    return file


def _as_error(failed: Failed) -> Exception:
    from resispec.models.base import ModelError

    if failed.kind == "config":
        return ConfigError(failed.message, failed.setting)
    return ModelError(failed.message) if failed.kind == "model" else EngineDied(failed.message)


def _run_engine(config: EngineConfig, connection: Connection, results: Connection) -> None:
    """The child process's whole life."""
    import signal

    # Whoever started the server stops it; the server then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from resispec.models.base import ModelError

    try:
        from .load import build_engine

        engine = build_engine(config)
    except ConfigError as error:
        connection.send(Failed("config", error.message, error.setting))
    except ModelError as error:
        connection.send(Failed("model", str(error)))
    except Exception as error:
        connection.send(Failed("other", f"the engine could not start: {type(error).__name__}: {error}"))
        raise
    else:
        gc.freeze()  # what is loaded stays; a collection that looks through it would hold up a step
        trim_heap()
        connection.send(engine.info)
        with contextlib.suppress(EOFError, OSError):  # the server is gone
            _serve(engine, connection, results.fileno())
        engine.close()


def framed(message: Request | Abort | Close) -> bytes:
    """As the server sends it."""
    return frame(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


class Requests:
    """Reads what the server sends; for the engine's end."""

    def __init__(self, pipe: int) -> None:
        """pipe: a descriptor that blocks."""
        self._pipe = pipe
        self._frames = Frames()

    def read(self) -> list[Request | Abort | Close]:
        """The messages that are whole by now; waits while there is nothing. Raises EOFError at the end."""
        data = os.read(self._pipe, _READ)
        if not data:
            raise EOFError
        return [pickle.loads(message) for message in self._frames.feed(data)]  # noqa: S301  our own server's


def _serve(engine: Any, connection: Connection, results: int) -> None:
    """results: the descriptor of the pipe that takes what comes of the requests."""
    wire, requests = Wire(), Requests(connection.fileno())
    poller = select.poll()  # `connection.poll` makes one for every look, which takes longer than the look
    poller.register(connection, select.POLLIN)
    sending: tuple[tuple[str, float], ...] = ()  # the phase that ends after its step has been told
    while True:
        while poller.poll(_milliseconds(0.0 if engine.has_work else engine.look_again)):
            for message in requests.read():
                if isinstance(message, Close):
                    return
                if isinstance(message, Abort):
                    engine.abort(message.request_id)
                    continue
                try:
                    engine.add(message)
                except RequestError as error:
                    wire.send(results, Rejected(message.request_id, error.message, error.param))
        if engine.has_work:
            result: StepResult = engine.step(sending)
            began = time.perf_counter()
            wire.send(results, result)
            sending = (("send", time.perf_counter() - began),)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
