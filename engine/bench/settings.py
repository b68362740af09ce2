"""What to measure: frozen, checked when made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from ..config import AUTO, DRAFT_QUANTIZATIONS, QUANTIZATIONS, ConfigError, EngineConfig
from ..request import FormHelp
from ..tree import DRAFT, plan_shape
from .forms import FORMS
from .prompts import PROMPT_SETS
from .serving.launch import Peer
from .shapes import SHAPES

T = TypeVar("T", int, float, str)

NO_HELP = "none"  # in a list of what forms are used for


@dataclass(frozen=True, slots=True)
class Tree:
    """The most a request's tree may hold."""

    nodes: int  # candidates, the root not counted
    depth: int  # drafted levels

    def __str__(self) -> str:
        return f"{self.nodes}x{self.depth}"


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Raises ConfigError, naming the option, for what cannot be measured."""

    target: str = "default"
    draft: str | None = "default"
    batch: tuple[int, ...] = (1, 8)  # requests in flight
    temperature: tuple[float, ...] = (0.0, 1.0)
    prompts: tuple[str, ...] = ("chat", "code", "copy")
    tokens: int = 64  # generated for every prompt
    repeats: int = 5
    num_threads: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"  # of our own engines' target
    draft_quantization: str = AUTO  # the same of the draft
    compile: bool = False  # of our own engines' target
    transformers: bool = True
    assisted: bool = False  # transformers' own speculation too
    trees: tuple[Tree, ...] = ()  # a sweep; empty: one kind of tree
    tree: Tree | None = None  # that kind, for every request however many run; None: the server's own
    verifiers: tuple[str, ...] = ()  # each a contender of its own; empty: the server's own
    proposers: tuple[str, ...] = ()  # the same: a proposer, or several with + between them
    modes: tuple[str, ...] = ()  # the same: auto, fixed
    forms: tuple[str, ...] = ()  # the same: what answers' forms are used for, with + between, or none
    attentions: tuple[str, ...] = ()  # ways to read the KV memory, each one more plain contender
    untrained: bool = False  # the draft's weights are random
    simulate: bool = False  # say of our engines' runs, too, what the simulator makes of them
    trace: Path | None = None  # for what was kept of drafted trees
    intruder: int | None = None  # tokens of a prompt that comes into the middle of each workload
    # Other servers, if any: then everybody is a server and measured over HTTP. None: all in this process.
    peers: tuple[Peer, ...] | None = None
    json: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "temperature", "prompts"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; name at least one", name)
        at_least(min(self.batch), 1, "batch")
        at_least(min(self.temperature), 0, "temperature")
        at_least(self.tokens, 2, "tokens")  # the first comes from the prompt, the others from decoding
        at_least(self.repeats, 1, "repeats")
        if self.tree is not None:
            at_least(self.tree.nodes, 1, "nodes")
            at_least(self.tree.depth, 1, "depth")
        if self.num_threads is not None:
            at_least(self.num_threads, 1, "num_threads")
        if self.quantization not in QUANTIZATIONS:
            raise ConfigError(
                f"quantization is {self.quantization!r}; use {', '.join(QUANTIZATIONS)}", "quantization"
            )
        if self.draft_quantization not in DRAFT_QUANTIZATIONS:
            raise ConfigError(
                f"draft_quantization is {self.draft_quantization!r}; use {', '.join(DRAFT_QUANTIZATIONS)}",
                "draft_quantization",
            )
        check_prompts(self.prompts)
        if self.intruder is not None:
            at_least(self.intruder, 1, "intruder")
        self._check_together()
        check_files(self.json, self.markdown, self.plot, self.trace)
        check_plot(self.plot)

    def _check_together(self) -> None:
        """What each may be, but not with the others."""
        refused = (
            (self.trees and self.draft is None, "draft", "a sweep over trees needs a draft"),
            (
                (self.verifiers or self.modes or self.forms) and self.draft is None and not self.proposers,
                "draft",
                "verifiers, modes and forms need a draft, or proposers",
            ),
            (
                self.draft_quantization != AUTO and self.draft is None,
                "draft_quantization",
                "there is no draft whose weights could be rounded; leave draft_quantization at auto",
            ),
            (
                self.compile and self.quantization == "int4",
                "compile",
                "compile does not go with quantization int4; use int8 or none",
            ),
            (
                self.trees and (self.verifiers or self.proposers or self.modes or self.forms),
                "sweep",
                "trees are compared by themselves; leave out verifiers, proposers, modes and forms",
            ),
            (self.trees and self.tree, "sweep", "a sweep has trees of its own"),
            (
                self.peers is not None and (self.has_variants or self.tree or self.attentions),
                "peer",
                "servers are measured as they are set up; leave out what is compared within one",
            ),
            (
                self.peers is not None and self.has_forms,
                "prompts",
                f"answers in forms ({', '.join(FORMS)}) are measured in this process; leave out --peer",
            ),
            (
                DRAFT in self.used_proposers and self.draft is None,
                "proposers",
                "proposers has 'draft', but there is none",
            ),
            (
                any(mode not in ("auto", "fixed") for mode in self.modes),
                "modes",
                f"modes is {', '.join(self.modes)}; use auto and fixed",
            ),
            (
                any(
                    not set(FormHelp).issuperset(names.split("+")) for names in self.forms if names != NO_HELP
                ),
                "forms",
                f"forms is {', '.join(self.forms)}; use {', '.join(FormHelp)} with + between, or none",
            ),
            (
                bool(self.forms) and not all(name in FORMS for name in self.prompts),
                "forms",
                f"forms are compared where answers have some: with --prompts {', '.join(FORMS)} alone",
            ),
            (self.untrained and self.draft is None, "untrained", "an untrained draft needs one to resemble"),
            (
                self.simulate and bool(self.verifiers or self.proposers or self.intruder or self.has_forms),
                "simulate",
                "only drafted trees are simulated; leave out verifiers, proposers, intruder and forms",
            ),
            (
                self.intruder is not None and max(self.batch) == 1,
                "intruder",
                "an intruder needs others to disturb; use a batch above 1",
            ),
            (
                self.assisted and not self.transformers,
                "assisted",
                "assisted generation is measured beside transformers' plain one; leave out --no-transformers",
            ),
        )
        for applies, name, reason in refused:
            if applies:
                raise ConfigError(reason, name)

    @property
    def has_variants(self) -> bool:
        """Whether several kinds of speculation are compared."""
        return bool(self.trees or self.verifiers or self.proposers or self.modes or self.forms)

    @property
    def has_forms(self) -> bool:
        """Whether the answers to some prompts have forms."""
        return any(name in FORMS for name in self.prompts)

    @property
    def used_proposers(self) -> tuple[str, ...]:
        """All proposers that some contender uses; empty: the server's own."""
        return tuple(dict.fromkeys(name for names in self.proposers for name in names.split("+")))

    def engine_config(self, max_model_len: int, *, speculates: bool, attention: str = "auto") -> EngineConfig:
        """One engine's configuration. No prefix caching: every repeat runs the same prompts."""
        defaults = EngineConfig(self.target)
        trees = self.trees or ((self.tree,) if self.tree else ())
        return EngineConfig(
            self.target,
            draft=self.draft if speculates else None,
            proposers=(speculates and self.used_proposers) or defaults.proposers,
            device=self.device,
            dtype=self.dtype,
            quantization=self.quantization,
            draft_quantization=self.draft_quantization if speculates and self.draft is not None else AUTO,
            compile=self.compile,
            attention=attention,
            max_num_seqs=max(self.batch) + (self.intruder is not None),
            max_model_len=max_model_len,
            max_tree_nodes=max((tree.nodes for tree in trees), default=None),
            max_tree_depth=max((tree.depth for tree in trees), default=None),
            prefix_caching=False,
            num_threads=self.num_threads,
            allow_inexact=bool(self.verifiers),  # a comparison may want to see what exactness costs
            offline=self.offline,
        )


@dataclass(frozen=True, slots=True)
class VerificationSettings:
    """Raises ConfigError, naming the option."""

    target: str = "default"
    draft: str = "default"
    verifiers: tuple[str, ...] = ("resispec",)
    temperature: tuple[float, ...] = (0.0, 1.0)
    batch: int = 8
    nodes: int = 16  # candidates of every tree
    depth: int = 4
    steps: int = 16  # counted, each repeat
    repeats: int = 5
    device: str = "auto"
    dtype: str = "auto"
    num_threads: int | None = None
    json: Path | None = None
    markdown: Path | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "nodes", "depth", "steps", "repeats"):
            at_least(getattr(self, name), 1, name)
        at_least(min(self.temperature, default=0.0), 0, "temperature")
        if not self.verifiers or not self.temperature:
            raise ConfigError("name at least one verifier and one temperature", "verifiers")
        check_files(self.json, self.markdown)


@dataclass(frozen=True, slots=True)
class FloorSettings:
    """Raises ConfigError, naming the option."""

    target: str = "default"
    shape: str | None = None  # one of `SHAPES`, with random weights, instead of the target
    context: int = 256  # tokens in the KV memory before the first counted step
    steps: int = 32  # counted, each repeat
    repeats: int = 5
    device: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    cuda_graphs: bool = True
    num_threads: int | None = None
    json: Path | None = None
    markdown: Path | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        for name in ("context", "steps", "repeats"):
            at_least(getattr(self, name), 1, name)
        if self.shape is not None and self.shape not in SHAPES:
            raise ConfigError(f"shape is {self.shape!r}; there are {', '.join(SHAPES)}", "shape")
        check_files(self.json, self.markdown)


def check_prompts(names: Sequence[str]) -> None:
    """Raises ConfigError."""
    for name in names:
        if name not in PROMPT_SETS:
            raise ConfigError(f"prompts has {name!r}; there are {', '.join(PROMPT_SETS)}", "prompts")


def check_files(*paths: Path | None) -> None:
    """Before anything is measured. Raises ConfigError."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(f"{path} cannot be written; name a file in a folder that exists")


def check_plot(path: Path | None) -> None:
    """Raises ConfigError where a plot is asked for that cannot be drawn."""
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"plot is {path}; name a .png, .svg or .pdf file", "plot")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot draws with matplotlib: pip install 'resispec[plot]'", "plot")


def parse_list(text: str, kind: Callable[[str], T], name: str, *, unique: bool = True) -> tuple[T, ...]:
    """``"1,8"`` as ``(1, 8)``, repetitions left out if ``unique``. Raises ConfigError naming the option."""
    try:
        values = tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; use values with commas between them", name) from error
    return tuple(dict.fromkeys(values)) if unique else values


def parse_tree(text: str) -> Tree:
    """``"8x3"``. Raises ConfigError."""
    nodes, _, depth = text.partition("x")
    if not (nodes.isdecimal() and depth.isdecimal() and int(nodes) and int(depth)):
        raise ConfigError(f"trees has {text!r}; use candidates x levels, such as 8x3", "trees")
    return Tree(int(nodes), int(depth))


def sweep_trees(nodes: Sequence[int], depths: Sequence[int]) -> tuple[Tree, ...]:
    """Every tree of these sizes and depths; those that come out alike are listed once."""
    at_least(min(nodes, default=0), 1, "nodes")
    at_least(min(depths, default=0), 1, "depth")
    trees: dict[object, Tree] = {}
    for budget in nodes:
        for depth in depths:
            shape = plan_shape(budget, depth, greedy=False)
            trees.setdefault(shape, Tree(budget, shape.depth))
    return tuple(trees.values())


def at_least(value: float, least: float, name: str) -> None:
    if not least <= value < float("inf"):
        raise ConfigError(f"{name} is {value}; it must be {least} or more", name)
