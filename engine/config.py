"""The engine's configuration: frozen, made once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Every setting of the engine. ``None`` means: chosen at start from the model and the machine."""

    target: str  # "default", a hub id, a local folder or a GGUF file
    draft: str | None = None  # None: no draft; "default" goes with the default target
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: str = "auto"  # auto, float32, bfloat16, float16
    max_num_seqs: int = 16
    max_model_len: int | None = None  # tokens; None: the model's own context
    kv_memory: int | None = None  # bytes for the KV memory of both models together
    max_num_batched_tokens: int = 512  # rows of one target forward
    verifier: str = "resispec"
    max_tree_nodes: int = 12  # candidates per tree, the root not counted
    max_tree_depth: int = 4  # drafted levels
    prefix_caching: bool = True
    num_threads: int | None = None  # CPU threads of torch; None: physical cores
    offline: bool = False  # never touch a network


class ConfigError(Exception):
    """A configuration that cannot work: says which setting, why, and what would work."""

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.setting = setting
