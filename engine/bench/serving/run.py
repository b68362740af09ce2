"""Benches over HTTP: servers that are started side by side, or one that runs already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import psutil
import torch
from rich.console import Console

from resispec.models.load.causal import load_tokenizer
from resispec.models.load.resolve import resolve

from ...load import choose_device, choose_dtype
from ..contenders import PLAIN, SPECULATIVE, BenchError, Contender, FailedContender
from ..machine import describe_machine
from ..prompts import PROMPT_SETS
from ..report import Report
from ..run import Results, describe_numbers, measure
from ..settings import BenchSettings
from ..summary import headline_ratios, summarize
from ..workload import Workload, at_least, encode_prompts, make_workloads
from .contender import Endpoint, ServedContender
from .launch import Host, Launch, own_server
from .own import OwnServer
from .process import ServerProcess, free_port
from .settings import UrlSettings, api_key

_SLACK = 32  # tokens of context beyond the longest request: servers differ in what they keep for themselves


def bench_servers(settings: BenchSettings, console: Console) -> Report:
    """Our server, plain and speculative, and its peers: all started, one awake at a time.

    One that does not start is a row with the reason. Raises what `bench` raises.
    """
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    machine = describe_machine(device)
    folder = resolve(settings.target, offline=settings.offline)
    tokenizer = load_tokenizer(folder)
    prompts = {name: encode_prompts(tokenizer, name) for name in settings.prompts}
    workloads = make_workloads(settings, prompts)
    longest = max(len(prompt) for group in prompts.values() for prompt in group)

    def host() -> Host:
        return Host(
            target=settings.target,
            folder=folder,
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=max(longest + settings.tokens, settings.intruder or 0) + _SLACK,
            max_num_seqs=max(settings.batch) + (settings.intruder is not None),
            threads=settings.num_threads or psutil.cpu_count(logical=False) or 1,
            port=free_port(),
        )

    launches: dict[str, Launch] = {}
    for suffix, more in (("", ()), (", compiled", ("--compile",)))[: 1 + settings.compile]:
        launches[PLAIN + suffix] = own_server(host(), None, more)
        if settings.draft is not None:
            launches[SPECULATIVE + suffix] = own_server(host(), settings.draft, more)
    peers = settings.peers or ()
    launches |= {peer.kind: peer.launch(host()) for peer in peers}
    baselines = (PLAIN, *(peer.kind for peer in peers))
    results = Results()
    ready: dict[str, float] = {}
    with ExitStack() as running:
        try:
            contenders = [
                running.enter_context(_started(name, launch, console, ready))
                for name, launch in launches.items()
            ]
            measure(contenders, workloads, settings.repeats, results, console)
        except KeyboardInterrupt:
            results.interrupted = True
    return Report(
        machine=machine,
        target=settings.target,
        draft=settings.draft,
        dtype=describe_numbers(settings, device, dtype),
        tokens=settings.tokens,
        repeats=settings.repeats,
        rows=summarize(results.cases, results.runs, results.errors, baselines),
        ratios=headline_ratios(results.cases, results.runs, baselines),
        interrupted=results.interrupted,
        baselines=baselines,
        ready_seconds=ready,
    )


def bench_url(settings: UrlSettings, console: Console) -> Report:
    """A server that runs already. Raises BenchError if it cannot be reached or names no model."""
    key = api_key()
    endpoint = Endpoint(
        settings.base_url,
        settings.model or _first_model(settings.base_url, key),
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
        chat=settings.chat,
        extra={"ignore_eos": True} if settings.ignore_eos else {},
        full_length=settings.ignore_eos,
    )
    results = Results()
    machine = describe_machine(torch.device("cpu"))
    try:
        measure(
            [ServedContender(endpoint.model, endpoint)],
            url_workloads(settings),
            settings.repeats,
            results,
            console,
        )
    except KeyboardInterrupt:
        results.interrupted = True
    return Report(
        machine=machine,
        target=f"{endpoint.model} at {settings.base_url}",
        draft=None,
        dtype="the server's own dtype",
        tokens=settings.tokens,
        repeats=settings.repeats,
        rows=summarize(results.cases, results.runs, results.errors, ()),
        ratios=(),
        interrupted=results.interrupted,
        baselines=(),
    )


def url_workloads(settings: UrlSettings) -> tuple[Workload, ...]:
    """Closed loops first, then open ones."""
    workloads: list[Workload] = []
    for name in settings.prompts:
        for temperature in settings.temperature:
            work = Workload(name, temperature, 0, settings.tokens, texts=PROMPT_SETS[name])
            for batch in settings.batch:
                count = settings.requests or max(batch, len(work.texts))
                workloads.append(replace(work, batch=batch, texts=at_least(work.texts, count)[:count]))
            for rate in settings.rate:
                count = settings.requests or len(work.texts)
                workloads.append(replace(work, rate=rate, texts=at_least(work.texts, count)[:count]))
    return tuple(workloads)


@contextmanager
def _started(name: str, launch: Launch, console: Console, ready: dict[str, float]) -> Iterator[Contender]:
    """A server that sleeps between its runs, or a contender that fails with the reason why there is none.

    ready: takes the seconds from its start until it served.
    """
    console.print(f"starting {name}", style="dim")
    with ExitStack() as running:
        try:
            began = time.monotonic()
            server = ServerProcess(launch.command, launch.environment, launch.port)
            running.callback(server.stop)
            model = server.wait_ready()
            ready[name] = time.monotonic() - began
            own = OwnServer(server.url) if launch.is_ours else None
            if own is not None:
                own.settle()
            server.run(False)
        except BenchError as error:
            yield FailedContender(name, error)
            return
        endpoint = Endpoint(server.url, model, extra=launch.extra)
        phases = dict if own is None else own.phase_seconds
        yield ServedContender(name, endpoint, busy=server.run, memory=server.memory, phases=phases)


def _first_model(url: str, key: str | None) -> str:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        answer = httpx2.get(f"{url}/v1/models", headers=headers, timeout=10.0)
        answer.raise_for_status()
        listed: Any = answer.json()["data"]
        return str(listed[0]["id"])
    except (httpx2.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise BenchError(
            f"{url} lists no model ({type(error).__name__}: {error}); name one with --model"
        ) from error
