"""An engine in a process of its own, seen from an asyncio loop.

The engine's process owns the models and the cores; a busy event loop beside it cannot stall a step.
Plain values travel both ways over one pipe: requests and aborts in, pickled; what it is when it is ready
or why it is not, pickled; then one `StepResult` a step out, by `Wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Self

from .config import ConfigError, EngineConfig
from .heap import trim_heap
from .outputs import EngineInfo, FinishReason, RequestOutput, StepResult, StepStats, Usage
from .request import Request, RequestError
from .wire import Rejected, Wire

_CLOSE_TIMEOUT = 10.0  # seconds a closing engine gets before it is killed


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


class OutputStream:
    """The outputs of one request, in order. Closing it early aborts the request."""

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self._request_id = request_id
        self._abort = abort
        self._queue: asyncio.Queue[RequestOutput | RequestError] = asyncio.Queue()
        self._ended = False

    def put(self, item: RequestOutput | RequestError) -> None:
        self._queue.put_nowait(item)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            item = await self._queue.get()
        except BaseException:
            await self.aclose()
            raise
        if isinstance(item, RequestError):
            self._ended = True
            raise item
        self._ended = item.finish_reason is not None
        return item

    async def aclose(self) -> None:
        if not self._ended:
            self._ended = True
            self._abort(self._request_id)


class EngineProcess:
    """An `EngineClient` whose engine runs in a child process."""

    def __init__(self, process: Any, connection: Connection, info: EngineInfo) -> None:
        self._process = process
        self._connection = connection
        self._info = info
        self._healthy = True
        self._closing = False
        self._streams: dict[str, OutputStream] = {}
        self._listeners: list[Callable[[StepStats], None]] = []
        self._loop = asyncio.get_running_loop()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Both directions block: sending while the engine is in a step and the pipe is full, receiving in
        # the middle of a message. The loop must not watch the pipe itself: uvloop would make it
        # non-blocking, for both, and a message that does not fit into it would be cut short.
        for work, name in ((self._send_all, "engine-sender"), (self._receive_all, "engine-receiver")):
            threading.Thread(target=work, name=name, daemon=True).start()

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineProcess:
        """Start the process and wait until it is ready to serve.

        Raises ConfigError or models.ModelError with the engine's own message, EngineDied otherwise.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_run_engine, args=(config, theirs), name="resispec-engine", daemon=True
        )
        process.start()
        theirs.close()
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
        return cls(process, ours, answer)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def healthy(self) -> bool:
        return self._healthy

    def generate(self, request: Request) -> OutputStream:
        stream = OutputStream(request.request_id, self._abort)
        if request.request_id in self._streams:
            raise RequestError(f"a request with id {request.request_id!r} is already running", "request_id")
        self._streams[request.request_id] = stream
        if self._healthy:
            self._outbox.put(request)
        else:
            self._fail(request.request_id)
        return stream

    def on_stats(self, listener: Callable[[StepStats], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._outbox.put(Close())
        await asyncio.to_thread(self._process.join, _CLOSE_TIMEOUT)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)
        self._lost()

    def _abort(self, request_id: str) -> None:
        if self._streams.pop(request_id, None) is not None and self._healthy:
            self._outbox.put(Abort(request_id))

    def _send_all(self) -> None:
        while True:
            message = self._outbox.get()
            if message is None:
                return
            # A pipe that broke is noticed by the reader, which ends all streams.
            with contextlib.suppress(OSError):
                self._connection.send(message)

    def _receive_all(self) -> None:
        wire = Wire()
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            while True:
                try:
                    message = wire.decode(self._connection.recv_bytes())
                except (EOFError, OSError):
                    self._loop.call_soon_threadsafe(self._lost)
                    return
                self._loop.call_soon_threadsafe(self._dispatch, message)

    def _dispatch(self, message: StepResult | Rejected) -> None:
        if isinstance(message, Rejected):
            stream = self._streams.pop(message.request_id, None)
            if stream is not None:
                stream.put(RequestError(message.message, message.param))
            return
        for output in message.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # aborted, while the engine was in the step
                continue
            if output.finish_reason is not None:
                del self._streams[output.request_id]
            stream.put(output)
        if message.stats.compilation is not None:
            self._info = replace(self._info, compilation=message.stats.compilation)
        for listener in self._listeners:
            listener(message.stats)

    def _lost(self) -> None:
        """The engine is gone: end every stream that is still open."""
        if not self._healthy:
            return
        self._healthy = False
        self._outbox.put(None)
        self._connection.close()
        for request_id in list(self._streams):
            self._fail(request_id)

    def _fail(self, request_id: str) -> None:
        self._streams.pop(request_id).put(
            RequestOutput(
                request_id,
                "",
                (),
                Usage(0, 0),
                FinishReason.ERROR,
                error="the engine has stopped; try again later",
            )
        )


def _as_error(failed: Failed) -> Exception:
    from resispec.models.base import ModelError

    if failed.kind == "config":
        return ConfigError(failed.message, failed.setting)
    return ModelError(failed.message) if failed.kind == "model" else EngineDied(failed.message)


def _run_engine(config: EngineConfig, connection: Connection) -> None:
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
            _serve(engine, connection)
        engine.close()


def _serve(engine: Any, connection: Connection) -> None:
    wire = Wire()
    sending: tuple[tuple[str, float], ...] = ()  # the phase that ends after its step has been told
    while True:
        while connection.poll(0 if engine.has_work else engine.look_again):
            message = connection.recv()
            if isinstance(message, Close):
                return
            if isinstance(message, Abort):
                engine.abort(message.request_id)
                continue
            try:
                engine.add(message)
            except RequestError as error:
                rejected = Rejected(message.request_id, error.message, error.param)
                connection.send_bytes(wire.encode(rejected))
        if engine.has_work:
            result: StepResult = engine.step(sending)
            began = time.perf_counter()
            connection.send_bytes(wire.encode(result))
            sending = (("send", time.perf_counter() - began),)
