"""``resispec bench``: options, and which of its ways of measuring they ask for."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from resispec.engine.config import ConfigError

from .exit_codes import ExitCode, failed

SERVERS, URL, SWEEP = "Other servers", "A running server", "What is compared"
FLOOR = "One stream against the memory"


class _Way(StrEnum):
    """How to measure, by the option that asks for it."""

    HERE = "a bench in this process"
    PEERS = "--peer"
    URL = "--url"
    VERIFICATION = "--verification"
    FLOOR = "--floor"


_HERE_OR_PEERS = frozenset({_Way.HERE, _Way.PEERS})
_LOCAL = _HERE_OR_PEERS | {_Way.VERIFICATION, _Way.FLOOR}
# Where each option means something; everywhere, if it is not listed. Elsewhere it is refused, not ignored.
_BELONGS: dict[str, frozenset[_Way]] = {
    **dict.fromkeys(("batch", "temperature"), frozenset(_Way) - {_Way.FLOOR}),
    "draft": _HERE_OR_PEERS | {_Way.VERIFICATION},
    **dict.fromkeys(("target", "num_threads", "device", "dtype", "offline"), _LOCAL),
    **dict.fromkeys(
        ("transformers", "assisted", "sweep", "proposers", "modes", "forms"), frozenset({_Way.HERE})
    ),
    **dict.fromkeys(("nodes", "depth", "verifiers"), frozenset({_Way.HERE, _Way.VERIFICATION})),
    "plot": frozenset({_Way.HERE, _Way.PEERS, _Way.URL}),
    "prompts": frozenset({_Way.HERE, _Way.PEERS, _Way.URL}),
    "intruder": _HERE_OR_PEERS,
    "compile": _HERE_OR_PEERS,
    **dict.fromkeys(
        ("quantization", "draft_quantization", "untrained", "simulate", "trace"), frozenset({_Way.HERE})
    ),
    "attention": frozenset({_Way.HERE, _Way.FLOOR}),
    **dict.fromkeys(("shape", "length", "cuda_graphs"), frozenset({_Way.FLOOR})),
    **dict.fromkeys(("model", "rate", "requests", "endpoint", "ignore_eos"), frozenset({_Way.URL})),
}


def bench(
    context: typer.Context,
    target: Annotated[
        str, typer.Option(help="'default', a hub id, a local folder or a GGUF file.")
    ] = "default",
    draft: Annotated[str, typer.Option(help="'default', a draft's folder or hub id, or 'none'.")] = "default",
    batch: Annotated[str, typer.Option(help="Requests in flight.")] = "1,8",
    temperature: Annotated[str, typer.Option(help="Temperatures; 0 is greedy.")] = "0,1",
    prompts: Annotated[
        str, typer.Option(help="Sets of prompts: chat, code, copy, translation, long, schema.")
    ] = "chat,code,copy",
    tokens: Annotated[int, typer.Option(help="Tokens generated for every prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Measured runs of everybody.")] = 5,
    num_threads: Annotated[
        int | None, typer.Option(help="CPU threads. Unset: the physical cores.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    quantization: Annotated[str, typer.Option(help="Of our target's weights: none, int8 or int4.")] = "none",
    draft_quantization: Annotated[
        str, typer.Option(help="Of our draft's weights: auto, none or int8.")
    ] = "auto",
    compile: Annotated[  # noqa: A002
        bool, typer.Option("--compile", help="Our target's layers, before we measure; with --peer also.")
    ] = False,
    transformers: Annotated[
        bool, typer.Option("--transformers/--no-transformers", help="Measure transformers.generate too.")
    ] = True,
    assisted: Annotated[
        bool,
        typer.Option(
            "--assisted",
            help="And its own speculation: with the draft if it can, else by n-grams of the text.",
        ),
    ] = False,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Give the draft random weights: it must be a head.")
    ] = False,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Also simulate each run of ours, with its own costs and acceptance."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="File for what was kept, for `resispec simulate --trace`.", show_default=False),
    ] = None,
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
            help="Candidates of all trees; in a sweep their sizes (default: 2,4,8,12,16).",
            show_default=False,
            rich_help_panel=SWEEP,
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            help="Drafted levels of all trees; in a sweep their depths (default: 2,3,4).",
            show_default=False,
            rich_help_panel=SWEEP,
        ),
    ] = None,
    verifiers: Annotated[
        str | None, typer.Option(help="Verifiers to compare.", show_default=False, rich_help_panel=SWEEP)
    ] = None,
    proposers: Annotated[
        str | None,
        typer.Option(
            help="Proposers to compare, several together with +: draft,ngram,draft+ngram.",
            show_default=False,
            rich_help_panel=SWEEP,
        ),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="Modes of speculation to compare: auto,fixed.", show_default=False, rich_help_panel=SWEEP
        ),
    ] = None,
    forms: Annotated[
        str | None,
        typer.Option(
            help="What forms are used for, to compare, with --prompts schema: forced, grammar and prompt, "
            "several with +, or none: forced+grammar+prompt,forced+grammar,none.",
            show_default=False,
            rich_help_panel=SWEEP,
        ),
    ] = None,
    verification: Annotated[
        bool,
        typer.Option(
            "--verification",
            help="What verification costs beside the target's forward: a batch of 8, trees of 16 by 4.",
            rich_help_panel=SWEEP,
        ),
    ] = False,
    floor: Annotated[
        bool,
        typer.Option(
            "--floor",
            help="One plain stream's step over the time to read what it needs, at the speed of a copy.",
            rich_help_panel=FLOOR,
        ),
    ] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Random weights instead of a target: llama-1b, llama-3b or llama-8b.",
            show_default=False,
            rich_help_panel=FLOOR,
        ),
    ] = None,
    length: Annotated[
        int, typer.Option(help="Tokens in the KV memory at first.", rich_help_panel=FLOOR)
    ] = 256,
    attention: Annotated[
        str,
        typer.Option(
            help="How the KV memory is read: auto, rows, segments or flex. Without --floor a list: each one "
            "more plain contender.",
            rich_help_panel=FLOOR,
        ),
    ] = "auto",
    cuda_graphs: Annotated[
        bool,
        typer.Option(
            "--cuda-graphs/--no-cuda-graphs",
            help="Record small steps and replay them.",
            rich_help_panel=FLOOR,
        ),
    ] = True,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=PYTHON[,MODEL]",
            help="Measure over HTTP, with this server beside ours: vllm, vllm-ngram, llama.cpp or "
            "llama.cpp-ngram, a Python that has it, and for llama.cpp a GGUF file. Repeat for several. "
            "none: our servers alone.",
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
    plot: Annotated[
        Path | None, typer.Option(help="File for a plot of the throughput, PNG or SVG.", show_default=False)
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch a network.")] = False,
) -> None:
    """Measure ratios in one run: plain and speculative decoding, and transformers with the same weights.

    Everybody runs in turn, again and again; figures are medians over the repeats, ratios are taken
    within each. Lists have commas between their values. With --peer, servers are started and measured
    over HTTP; with --url, one that runs already.
    """
    from resispec.engine.openmp import openmp_for_engine, openmp_unbound

    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    ways = ((url, _Way.URL), (peer, _Way.PEERS), (verification, _Way.VERIFICATION), (floor, _Way.FLOOR))
    way = next((way for asked, way in ways if asked), _Way.HERE)
    try:
        _refuse_strangers(given, way)
        measure = _MEASURES[way](given)
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
    is_here = way in (_Way.HERE, _Way.VERIFICATION, _Way.FLOOR)  # the engine runs in this process
    with openmp_for_engine() if is_here else openmp_unbound():
        import resispec.engine.bench.command  # noqa: F401
    from resispec.engine.bench.contenders import BenchError
    from resispec.models.base import ModelError

    try:
        complete = measure()
    except ConfigError as exc:
        raise failed(exc, ExitCode.CONFIGURATION) from None
    except ModelError as exc:
        raise failed(exc, ExitCode.MODEL) from None
    except BenchError as exc:
        raise failed(exc, ExitCode.ERROR) from None
    raise typer.Exit(ExitCode.OK if complete else ExitCode.ERROR)


def _here(given: dict[str, Any]) -> Callable[[], bool]:
    from resispec.engine.bench.serving.launch import parse_peer
    from resispec.engine.bench.settings import BenchSettings, Tree, parse_list, sweep_trees

    if "attention" in given:
        given["attentions"] = parse_list(given.pop("attention"), str, "attention")
    sweep = given.pop("sweep", False)
    nodes, depth = given.pop("nodes", None), given.pop("depth", None)
    if (nodes is None) != (depth is None) and not sweep:
        raise ConfigError("--nodes and --depth go together, or with --sweep or --verification")
    if nodes is not None and not sweep:
        sizes = (
            _one(parse_list(text, int, name), name)[0] for name, text in (("nodes", nodes), ("depth", depth))
        )
        given["tree"] = Tree(*sizes)
    if sweep:
        given["trees"] = sweep_trees(
            parse_list(nodes or "2,4,8,12,16", int, "nodes"), parse_list(depth or "2,3,4", int, "depth")
        )
    if given.get("draft") == "none":
        given["draft"] = None
    names = given.pop("peer", None)
    if names and "none" in names and len(names) > 1:
        raise ConfigError("--peer none goes without other peers")
    peers = None if not names else () if names == ["none"] else tuple(map(parse_peer, names))
    settings = BenchSettings(**_parsed(given), peers=peers)

    def measure() -> bool:
        from resispec.engine.bench.command import run

        return run(settings)

    return measure


def _running_server(given: dict[str, Any]) -> Callable[[], bool]:
    from resispec.engine.bench.serving.settings import UrlSettings

    endpoint = given.pop("endpoint", "chat")
    if endpoint not in ("chat", "completions"):
        raise ConfigError(f"endpoint is {endpoint!r}; use chat or completions")
    if "rate" in given:
        given.setdefault("batch", "")
    settings = UrlSettings(**_parsed(given), chat=endpoint == "chat")

    def measure() -> bool:
        from resispec.engine.bench.command import run_url

        return run_url(settings)

    return measure


def _verification(given: dict[str, Any]) -> Callable[[], bool]:
    from resispec.engine.bench.settings import VerificationSettings, parse_list

    given.pop("verification")
    if "tokens" in given:
        given["steps"] = given.pop("tokens")
    for name in ("batch", "nodes", "depth"):
        if name in given:
            (given[name],) = _one(parse_list(given[name], int, name), name)
    settings = VerificationSettings(**_parsed(given))

    def measure() -> bool:
        from resispec.engine.bench.command import run_verification

        return run_verification(settings)

    return measure


def _floor(given: dict[str, Any]) -> Callable[[], bool]:
    from resispec.engine.bench.settings import FloorSettings

    given.pop("floor")
    if "shape" in given and "target" in given:
        raise ConfigError("--shape is measured instead of a --target; give one of them", "shape")
    for ours, theirs in (("tokens", "steps"), ("length", "context")):
        if ours in given:
            given[theirs] = given.pop(ours)
    settings = FloorSettings(**given)

    def measure() -> bool:
        from resispec.engine.bench.command import run_floor

        return run_floor(settings)

    return measure


_MEASURES: dict[_Way, Callable[[dict[str, Any]], Callable[[], bool]]] = {
    _Way.HERE: _here,
    _Way.PEERS: _here,
    _Way.URL: _running_server,
    _Way.VERIFICATION: _verification,
    _Way.FLOOR: _floor,
}


def _parsed(given: dict[str, Any]) -> dict[str, Any]:
    """The options with lists as tuples."""
    from resispec.engine.bench.settings import parse_list

    kinds: dict[str, Callable[[str], Any]] = {"batch": int, "temperature": float, "rate": float}
    kinds |= {"prompts": str, "verifiers": str, "proposers": str, "modes": str, "forms": str}
    return {
        name: parse_list(value, kinds[name], name) if name in kinds and isinstance(value, str) else value
        for name, value in given.items()
    }


def _one(values: tuple[int, ...], name: str) -> tuple[int]:
    if len(values) != 1:
        raise ConfigError(f"--{name} is one number without --sweep", name)
    return (values[0],)


def _refuse_strangers(given: dict[str, Any], way: _Way) -> None:
    """Raises ConfigError for an option that this way of measuring would ignore."""
    for name in given:
        belongs = _BELONGS.get(name)
        if belongs is not None and way not in belongs:
            where = " or ".join(sorted(other for other in belongs if other is not _Way.HERE))
            reason = f"goes with {where}" if way is _Way.HERE else f"does not go with {way}"
            raise ConfigError(f"--{name.replace('_', '-')} {reason}", name)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
