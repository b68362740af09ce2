"""``resispec bench``: options, and which of its ways of measuring they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from resispec.engine.config import ConfigError

from .exit_codes import ExitCode, failed

SERVERS, URL, SWEEP = "Other servers", "A running server", "What is compared"
# Options of other ways to measure, which --url would ignore.
_NOT_WITH_URL = (
    *("target", "draft", "num_threads", "device", "dtype", "transformers", "sweep", "nodes", "depth"),
    *("verifiers", "peer", "intruder", "offline"),
)
_ONLY_WITH_URL = ("model", "rate", "requests", "endpoint", "ignore_eos")


def bench(
    context: typer.Context,
    target: Annotated[
        str, typer.Option(help="'default', a hub id, a local folder or a GGUF file.")
    ] = "default",
    draft: Annotated[str, typer.Option(help="'default', a draft's folder or hub id, or 'none'.")] = "default",
    batch: Annotated[str, typer.Option(help="Requests in flight.")] = "1,8",
    temperature: Annotated[str, typer.Option(help="Temperatures; 0 is greedy.")] = "0,1",
    prompts: Annotated[
        str, typer.Option(help="Sets of prompts: chat, code, copy, translation, long.")
    ] = "chat,code,copy",
    tokens: Annotated[int, typer.Option(help="Tokens generated for every prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Measured runs of everybody.")] = 5,
    num_threads: Annotated[
        int | None, typer.Option(help="CPU threads. Unset: the physical cores.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    transformers: Annotated[
        bool, typer.Option("--transformers/--no-transformers", help="Measure transformers.generate too.")
    ] = True,
    intruder: Annotated[
        int | None,
        typer.Option(
            help="Also run each batch while one prompt of so many tokens comes in between.",
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure trees of several sizes.", rich_help_panel=SWEEP)
    ] = False,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Sizes of trees in a sweep (default: 2,4,8,12,16).",
            show_default=False,
            rich_help_panel=SWEEP,
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            help="Depths of trees in a sweep (default: 2,3,4).", show_default=False, rich_help_panel=SWEEP
        ),
    ] = None,
    verifiers: Annotated[
        str | None, typer.Option(help="Verifiers to compare.", show_default=False, rich_help_panel=SWEEP)
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=PYTHON[,MODEL]",
            help="Measure over HTTP, with this server beside ours: vllm, vllm-ngram, llama.cpp or "
            "llama.cpp-ngram, a Python that has it, and for llama.cpp a GGUF file. Repeat for several.",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Any that speaks OpenAI's dialect. Its key: RESISPEC_API_KEY or OPENAI_API_KEY.",
            show_default=False,
            rich_help_panel=URL,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Unset: the first it lists.", show_default=False, rich_help_panel=URL),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Requests a second, at random moments.", show_default=False, rich_help_panel=URL),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Of each kind. Unset: all prompts.", show_default=False, rich_help_panel=URL),
    ] = None,
    endpoint: Annotated[str, typer.Option(help="chat or completions.", rich_help_panel=URL)] = "chat",
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Have all answers as long as asked; not in OpenAI's dialect.",
            rich_help_panel=URL,
        ),
    ] = False,
    json: Annotated[Path | None, typer.Option(help="File for the figures.", show_default=False)] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the tables.", show_default=False)] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch a network.")] = False,
) -> None:
    """Measure ratios in one run: plain and speculative decoding, and transformers with the same weights.

    Everybody runs in turn, again and again; figures are medians over the repeats, ratios are taken
    within each. Lists have commas between their values. With --peer, servers are started and measured
    over HTTP; with --url, one that runs already.
    """
    from resispec.engine.bench.settings import BenchSettings, parse_list, sweep_trees
    from resispec.engine.openmp import openmp_for_engine

    shared: dict[str, Any] = {"tokens": tokens, "repeats": repeats, "json": json, "markdown": markdown}
    try:
        _check_way(context, url)
        if not sweep and (nodes is not None or depth is not None):
            raise ConfigError("--nodes and --depth go with --sweep")
        shared |= {
            "batch": parse_list(batch, int, "batch"),
            "temperature": parse_list(temperature, float, "temperature"),
            "prompts": parse_list(prompts, str, "prompts"),
        }
        if url is not None:
            raise typer.Exit(_bench_url(shared, context, url, model, rate, requests, endpoint, ignore_eos))
        from resispec.engine.bench.serving.launch import parse_peer

        trees = sweep_trees(
            parse_list(nodes or "2,4,8,12,16", int, "nodes"), parse_list(depth or "2,3,4", int, "depth")
        )
        settings = BenchSettings(
            target=target,
            draft=None if draft == "none" else draft,
            num_threads=num_threads,
            device=device,
            dtype=dtype,
            transformers=transformers,
            trees=trees if sweep else (),
            verifiers=parse_list(verifiers or "", str, "verifiers"),
            intruder=intruder,
            peers=tuple(parse_peer(text) for text in peer or ()),
            offline=offline,
            **shared,
        )
        if settings.peers:  # the servers choose for their own processes
            from resispec.engine.bench.command import run
        else:
            with openmp_for_engine():
                from resispec.engine.bench.command import run
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
    from resispec.models.base import ModelError

    try:
        complete = run(settings)
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
    except ModelError as exc:
        raise failed(exc, ExitCode.MODEL) from None
    raise typer.Exit(ExitCode.OK if complete else ExitCode.ERROR)


def _bench_url(
    shared: dict[str, Any],
    context: typer.Context,
    url: str,
    model: str | None,
    rate: str | None,
    requests: int | None,
    endpoint: str,
    ignore_eos: bool,
) -> ExitCode:
    from resispec.engine.bench.serving.settings import UrlSettings
    from resispec.engine.bench.settings import parse_list

    if endpoint not in ("chat", "completions"):
        raise ConfigError(f"endpoint is {endpoint!r}; use chat or completions")
    # Where nothing was said, a little of everything is too much for a server of others.
    given = {name: value for name, value in shared.items() if _was_given(context, name)}
    if rate is not None and "batch" not in given:
        given["batch"] = ()
    settings = UrlSettings(
        url,
        model=model,
        rate=parse_list(rate or "", float, "rate"),
        requests=requests,
        chat=endpoint == "chat",
        ignore_eos=ignore_eos,
        **given,
    )
    from resispec.engine.bench.command import run_url
    from resispec.engine.bench.contenders import BenchError

    try:
        return ExitCode.OK if run_url(settings) else ExitCode.ERROR
    except BenchError as exc:
        raise failed(exc, ExitCode.ERROR) from None


def _check_way(context: typer.Context, url: str | None) -> None:
    """Refuse options that the way of measuring asked for would ignore. Raises ConfigError."""
    for name in _ONLY_WITH_URL if url is None else _NOT_WITH_URL:
        if _was_given(context, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} goes with --url" if url is None else f"{flag} does not go with --url", name
            )


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
