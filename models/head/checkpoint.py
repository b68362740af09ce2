"""A head on disk: ``config.json`` and ``model.safetensors`` (weights in bfloat16, ``vocab_ids`` int32)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..base import ModelError
from ..files import write_whole
from .config import HeadConfig
from .module import HeadModule

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_VOCAB_IDS = "vocab_ids"


def save_head(folder: Path, module: HeadModule, vocab_ids: Tensor) -> None:
    """Write a head; ``vocab_ids [V]``: the target's id of every column of the head's logits, ascending.

    Each file appears whole or not at all, the config last. Raises ModelError for a disk that is full.
    """
    _check_vocab_ids(vocab_ids, module.config)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().to("cpu", torch.bfloat16) for name, value in module.state_dict().items()}
    tensors[_VOCAB_IDS] = vocab_ids.to("cpu", torch.int32)
    write_whole(folder / WEIGHTS_FILE, save({name: value.contiguous() for name, value in tensors.items()}))
    write_whole(folder / CONFIG_FILE, module.config.to_json())


def load_head(
    folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> tuple[HeadModule, Tensor]:
    """The module, in evaluation mode, and ``vocab_ids [V]`` int64.

    Raises ModelError when a file is missing, cut off, or does not hold what the config says.
    """
    try:
        config = HeadConfig.from_json((folder / CONFIG_FILE).read_text())
        tensors = load_file(folder / WEIGHTS_FILE, device=str(device))
    except (OSError, UnicodeDecodeError, SafetensorError) as error:
        raise ModelError(f"cannot read the draft head in {folder}: {error}") from error
    except ModelError as error:
        raise ModelError(f"{folder / CONFIG_FILE}: {error}") from error
    if _VOCAB_IDS not in tensors:
        raise ModelError(f"{folder / WEIGHTS_FILE} holds no {_VOCAB_IDS}")
    vocab_ids = tensors.pop(_VOCAB_IDS).long()
    _check_vocab_ids(vocab_ids, config)
    with torch.device("meta"):
        module = HeadModule(config)
    try:
        module.load_state_dict({name: value.to(dtype) for name, value in tensors.items()}, assign=True)
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS_FILE} does not fit its config: {error}") from error
    return module.requires_grad_(False).eval(), vocab_ids


def _check_vocab_ids(vocab_ids: Tensor, config: HeadConfig) -> None:
    if vocab_ids.shape != (config.draft_vocab_size,):
        raise ModelError(f"{len(vocab_ids)} vocab_ids for a draft vocabulary of {config.draft_vocab_size}")
    inside = int(vocab_ids[0]) >= 0 and int(vocab_ids[-1]) < config.target.vocab_size
    if not inside or bool((vocab_ids.diff() <= 0).any()):
        raise ModelError(f"vocab_ids must ascend within the target's {config.target.vocab_size} ids")
