"""A draft head in training: made for its target, read by its rows of the target's output matrix."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..base import ModelError
from ..head.checkpoint import load_head, save_head
from ..head.config import HeadConfig
from ..head.fingerprint import check_head, fingerprint
from ..head.module import HeadModule
from .batches import Batch
from .unrolled import head_states

LEVELS = 3  # that it is unrolled to
_DEFAULT_ROPE_THETA = 10_000.0


class HeadTrainee:
    """One decoder layer on the target's hidden states, trained several levels deep."""

    levels = LEVELS

    def __init__(self, module: HeadModule, embeddings: Tensor, vocab_ids: Tensor) -> None:
        """``embeddings [full vocabulary, H]`` are the target's; ``vocab_ids [V]`` int64, ascending."""
        self.module = module
        self.vocab_ids = vocab_ids
        self._embeddings = embeddings

    def states(self, batch: Batch, passes: int) -> list[Tensor]:
        return head_states(self.module, self._embeddings[batch.tokens], batch.hidden, passes, batch.layers)

    def save(self, folder: Path) -> None:
        save_head(folder, self.module, self.vocab_ids)

    def describe(self) -> str:
        config, parameters = self.module.config, sum(p.numel() for p in self.module.parameters())
        read = ""
        if config.target_layers:
            read = (
                f",\nwhat goes into its layers {', '.join(map(str, config.target_layers))} (counted from 0)"
            )
        return f"""# Draft head for {config.target.name}

One decoder layer ({parameters / 1e6:.1f} M weights, bfloat16) that reads the target's last hidden state{read}
and the next token. It drafts with the target's own output matrix, cut to {config.draft_vocab_size} tokens.
It holds no embedding and no output matrix and is of no use without its target, which ResiSpec checks at load.
"""


def earlier_head(folder: Path, target: Any, tokenizer: Any) -> HeadModule:
    """A head that was trained before, its weights in float32.

    Raises ModelError when it belongs to another target.
    """
    module, _ = load_head(folder, dtype=torch.float32)
    check_head(module.config, target, tokenizer)
    return module


@torch.no_grad()
def begin_as(module: HeadModule, earlier: HeadModule) -> None:
    """Give ``module``, which was initialised, the weights of an ``earlier`` head, and so what that one gives.

    It may have another draft vocabulary, read layers of the target where the earlier one reads none, and be
    wider in its feed-forward part: what is new there was initialised to add nothing.
    Raises ModelError when it cannot begin so.
    """
    was, config = earlier.config, module.config
    if was.target_layers not in ((), config.target_layers):
        raise ModelError(
            f"the head to start from reads target_layers {list(was.target_layers)}, "
            f"the new one is to read {list(config.target_layers)}"
        )
    if was.intermediate_size > config.intermediate_size:
        raise ModelError(
            f"intermediate_size is {config.intermediate_size}, but the head to start from has "
            f"{was.intermediate_size}; give as much or more"
        )
    same = dataclasses.replace(
        was,
        draft_vocab_size=config.draft_vocab_size,
        intermediate_size=config.intermediate_size,
        target=config.target,
        target_layers=config.target_layers,
    )
    if same != config:
        raise ModelError("the sizes of the head to start from are not those of a head for this target")
    own = module.state_dict()
    for name, weight in earlier.state_dict().items():
        own[name][tuple(slice(size) for size in weight.shape)] = weight


def head_config(
    target: Any,
    tokenizer: Any,
    name: str,
    max_positions: int,
    draft_vocab_size: int,
    target_layers: tuple[int, ...] = (),
    intermediate_size: int | None = None,
) -> HeadConfig:
    """A head of the target's own sizes; ``intermediate_size`` may be another."""
    sizes = target.config
    size, heads = int(sizes.hidden_size), int(sizes.num_attention_heads)
    head_dim = int(getattr(sizes, "head_dim", None) or size // heads)
    width = intermediate_size or getattr(sizes, "intermediate_size", None)
    return HeadConfig(
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=int(getattr(sizes, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        intermediate_size=int(width) if isinstance(width, int) else 8 * size // 3,
        rope_theta=_rope_theta(sizes),
        rms_norm_eps=1e-5,
        max_positions=max_positions,
        draft_vocab_size=draft_vocab_size,
        target=fingerprint(target, tokenizer, name),
        target_layers=target_layers,
    )


def _rope_theta(sizes: Any) -> float:
    """The target's, where it has one for all layers: its positions are on the scale of its contexts."""
    parameters = getattr(sizes, "rope_parameters", None)
    theta = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    return float(theta) if theta else _DEFAULT_ROPE_THETA
