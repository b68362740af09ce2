"""Medusa heads: what may stand at the next places, each place guessed by itself from one state.

From the target's last state at position ``i``, whose output matrix says the token at ``i + 1``, head ``k``
(0, 1, ..) says the token at ``i + 2 + k`` (Cai et al. 2024, arXiv 2401.10774)::

    h_i -- x + SiLU(W x + b), some times -- output matrix of its own -- logits of position i + 2 + k

The heads know nothing of each other's tokens, so only their top tokens are of use, in all combinations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .base import ModelError
from .layout import lay_out_linears

CONFIG_KEYS = ("medusa_num_heads", "medusa_num_layers")
WEIGHTS, PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"


class MedusaHeads(nn.Module):
    """``K`` heads of one checkpoint; children are named as its tensors are."""

    def __init__(self, num_heads: int, num_layers: int, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        for head in range(num_heads):
            blocks = [_Block(hidden_size) for _ in range(num_layers)]
            output = nn.Linear(hidden_size, vocab_size, bias=False)
            self.add_module(str(head), nn.Sequential(*blocks, output))
        self.num_heads = num_heads

    def forward(self, states: Tensor) -> Tensor:
        """``states [n, H]``, the target's last -> logits ``[n, K, V]`` float32."""
        return torch.stack([head(states) for head in self.children()], dim=1).float()

    def tops(self, states: Tensor, count: int, num_ids: int) -> Tensor:
        """Every head's ``count`` best tokens below ``num_ids``: ``[n, H]`` -> ``[n, K, count]`` int64."""
        logits: Tensor = self(states)[..., :num_ids]
        return logits.topk(count, dim=-1).indices

    def lay_out(self, quantization: str) -> None:
        """Lay the weights out for the kernels of the device, as `lay_out_linears` does."""
        some = next(self.parameters())
        lay_out_linears(self, quantization, some.device, some.dtype)


class _Block(nn.Module):
    """``x + SiLU(W x + b)``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


def load_medusa(folder: Path, target: Any, dtype: torch.dtype) -> MedusaHeads:
    """The heads in ``folder``, in evaluation mode on the target's device.

    The common format: ``config.json`` with ``medusa_num_heads`` and ``medusa_num_layers``, and
    ``medusa_lm_head.safetensors`` (or ``.pt``) with ``K.B.linear.weight``, ``K.B.linear.bias`` for block
    ``B`` of head ``K`` and ``K.N.weight`` for its output matrix. Raises ModelError for anything else.
    """
    matrix = target.get_output_embeddings().weight
    try:
        num_heads, num_layers = _read_config(folder)
        tensors = _read_weights(folder, target.device)
        with torch.device("meta"):
            module = MedusaHeads(num_heads, num_layers, matrix.shape[1], matrix.shape[0])
        own = module.state_dict()
        for name in sorted(own.keys() ^ tensors.keys()):
            there = "is missing" if name in own else "is not known here"
            raise ModelError(f"{num_heads} heads of {num_layers} blocks are announced, and {name} {there}")
        for name, value in tensors.items():
            if value.shape != own[name].shape:
                wanted = f"for this target it would be {list(own[name].shape)}"
                raise ModelError(f"{name} is {list(value.shape)}; {wanted}")
    except ModelError as error:
        raise ModelError(f"the Medusa heads in {folder} cannot be used: {error}") from error
    module.load_state_dict({name: value.to(dtype) for name, value in tensors.items()}, assign=True)
    return module.requires_grad_(False).eval()


def _read_config(folder: Path) -> tuple[int, int]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"config.json cannot be read: {error}") from error
    heads, layers = (config.get(key) for key in CONFIG_KEYS)
    if not isinstance(heads, int) or not isinstance(layers, int) or heads < 1 or layers < 0:
        raise ModelError(f"config.json has {CONFIG_KEYS[0]} {heads!r} and {CONFIG_KEYS[1]} {layers!r}")
    return heads, layers


def _read_weights(folder: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        if (folder / WEIGHTS).is_file():
            return load_file(folder / WEIGHTS, device=str(device))
        if (folder / PICKLE).is_file():
            tensors: dict[str, Tensor] = torch.load(folder / PICKLE, map_location=device, weights_only=True)
            return tensors
    except (OSError, SafetensorError) as error:
        raise ModelError(f"its weights cannot be read: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise ModelError(f"{PICKLE} holds no tensors: {error}") from error
    raise ModelError(f"there is neither {WEIGHTS} nor {PICKLE}")
