"""The engine's configuration: frozen, made once."""

from __future__ import annotations

from dataclasses import dataclass

from .request import SpeculationMode
from .tree import DRAFT

DEFAULT = "default"  # the embedded pair
AUTO = "auto"
QUANTIZATIONS = ("none", "int8", "int4")
DRAFT_QUANTIZATIONS = (AUTO, "none", "int8")
DEFAULT_NAME = "smollm2-135m-instruct"  # what its target is called
MOST_NODES, MOST_DEPTH = 16, 4  # of a tree, unless the configuration says otherwise


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Every setting of the engine. ``None`` means: chosen at start from the model and the machine."""

    target: str  # "default", a hub id, a local folder or a GGUF file
    draft: str | None = None  # None: no draft; "default" goes with the default target
    proposers: tuple[str, ...] = (DRAFT,)  # who says what may follow; the draft where there is one
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: str = "auto"  # auto, float32, bfloat16, float16
    quantization: str = "none"  # of the target's weights: one of QUANTIZATIONS
    draft_quantization: str = AUTO  # of the draft's: one of DRAFT_QUANTIZATIONS; auto: int8 where it is quick
    compile: bool = False  # the target's layers, in the background
    max_num_seqs: int = 16
    max_model_len: int | None = None  # tokens; None: the model's own context
    kv_memory: int | None = None  # bytes for the KV memory of both models together
    max_num_batched_tokens: int | None = None  # rows of one target forward; None: trees and a good chunk
    max_prefill_ms: float = 50.0  # that prompts may add to a step in which others decode
    verifier: str = "resispec"
    allow_inexact: bool = False  # let requests choose verifiers that do not keep the target's law
    speculation: SpeculationMode = SpeculationMode.AUTO
    baseline_probe_share: float = 0.01  # of the steps with trees: run without, to know what that costs
    # Limits of a tree: candidates, the root not counted, and drafted levels. None: MOST_NODES and MOST_DEPTH;
    # in the mode fixed trees are then as large as usually pays on the device (docs/trees.md).
    max_tree_nodes: int | None = None
    max_tree_depth: int | None = None
    max_step_nodes: int | None = None  # candidates per step over all requests; None: by device
    prefix_caching: bool = True
    attention: str = "auto"  # how the KV memory is read: auto, rows, segments, flex
    cuda_graphs: bool = True  # on a GPU, record small steps and replay them
    num_threads: int | None = None  # CPU threads of torch; None: physical cores
    offline: bool = False  # never touch a network

    @property
    def sources(self) -> tuple[str, ...]:
        """The proposers that are no drafts."""
        return tuple(name for name in self.proposers if name != DRAFT)

    @property
    def most_nodes(self) -> int:
        """Candidates that any request's tree may hold."""
        return MOST_NODES if self.max_tree_nodes is None else self.max_tree_nodes

    @property
    def most_depth(self) -> int:
        """Drafted levels that any request's tree may have."""
        return MOST_DEPTH if self.max_tree_depth is None else self.max_tree_depth

    @property
    def tree_rows(self) -> int:
        """Rows that all requests' trees and roots take together."""
        speculates = self.sources or self.draft is not None
        return self.max_num_seqs * (1 + (self.most_nodes if speculates else 0))

    @property
    def batched_tokens(self) -> int:
        """Rows of one target forward: every request's tree, and what is left for prompts."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(512, self.tree_rows + 256)


class ConfigError(Exception):
    """A configuration that cannot work: says which setting, why, and what would work."""

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.setting = setting
