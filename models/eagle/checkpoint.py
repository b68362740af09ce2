"""Reading a public EAGLE checkpoint: names of two layouts, and which token each row of its logits means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ..base import ModelError
from .config import EagleConfig, read_config
from .module import EagleModule, check_target

PICKLE = "pytorch_model.bin"
# Of no use once it is trained: the other direction of the vocabulary's map, and copies of the target's.
_LEFT_OUT = re.compile(r"t2d|verifier_(norm|lm_head)\.weight|.*rotary_emb\.inv_freq")
_RENAMED = (
    (re.compile(r"^(midlayer|layers\.0|transformer)\.(self_attn\.|mlp\.)?"), "layer."),
    (re.compile(r"^fusion_fc\."), "fc."),
    (re.compile(r"^(norm|lm_head)\."), r"output.\1."),
)


def tensor_names(folder: Path) -> frozenset[str]:
    """Of all tensors in ``folder``. Raises ModelError where they cannot be read."""
    return frozenset(_read(folder, None))


def load_eagle(
    folder: Path, target: Any, num_ids: int, dtype: torch.dtype
) -> tuple[EagleModule, Tensor | None, tuple[str, ...]]:
    """The module, in evaluation mode on the target's device; ``[V]`` int64, the target's id of every column
    of its logits, or None for the identity; and notes for whoever serves it.

    num_ids: token ids of the target from here on do not exist. Raises ModelError for what is missing,
    unknown, of another size, or not supported.
    """
    raw = _read(folder, target.device)
    config = read_config(folder, frozenset(raw))
    try:
        vocab_ids, tensors = _vocabulary(raw, num_ids)
        check_target(config, target, list(tensors))
        output = tensors.get("lm_head.weight")
        if vocab_ids is None and output is not None and output.shape[0] < num_ids:
            raise ModelError(f"it scores {output.shape[0]} tokens and has no d2t to say which they are")
        module = _module(config, tensors, target, dtype)
    except ModelError as error:
        raise ModelError(f"the EAGLE head in {folder} cannot be used: {error}") from error
    maker = f" It was made for {config.made_for}." if config.made_for else ""
    note = f"The draft is a public EAGLE head, which cannot show that it was made for this target.{maker}"
    return module.requires_grad_(False).eval(), vocab_ids, (note,)


def _read(folder: Path, device: torch.device | None) -> dict[str, Any]:
    """Name -> tensor, under the names here; without a device nothing is loaded."""
    tensors: dict[str, Any] = {}
    files = sorted(folder.glob("*.safetensors"))
    try:
        for path in files:
            with safe_open(path, framework="pt", device=str(device or "cpu")) as file:
                names = file.keys()
                tensors |= {name: file.get_tensor(name) if device else None for name in names}
        if not files and (folder / PICKLE).is_file():
            tensors = torch.load(folder / PICKLE, map_location=device or "meta", weights_only=True)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights in {folder}: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise ModelError(f"{folder / PICKLE} holds no tensors: {error}") from error
    return tensors


def _vocabulary(tensors: dict[str, Any], num_ids: int) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The target's ids, and the tensors without the map and without rows whose token does not exist."""
    kept = {name: value for name, value in tensors.items() if not _LEFT_OUT.fullmatch(name)}
    offsets = kept.pop("d2t", None)
    if offsets is None:
        return None, kept
    if "lm_head.weight" not in kept or kept["lm_head.weight"].shape[0] != len(offsets):
        raise ModelError("d2t maps another number of tokens than lm_head.weight has rows")
    ids = torch.arange(len(offsets), device=offsets.device) + offsets.long()
    if len(ids.unique()) < len(ids) or int(ids.min()) < 0:
        raise ModelError("d2t gives two rows the same token, or one that is none")
    exists = ids < num_ids
    kept["lm_head.weight"] = kept["lm_head.weight"][exists]
    return ids[exists], kept


def _module(config: EagleConfig, tensors: dict[str, Tensor], target: Any, dtype: torch.dtype) -> EagleModule:
    renamed = {_name(name): value.to(dtype) for name, value in tensors.items()}
    output = renamed.get("output.lm_head.weight")
    with torch.device("meta"):
        module = EagleModule(
            config,
            own_embedding="embed_tokens.weight" in renamed,
            own_output=0 if output is None else output.shape[0],
            fuse_bias="fc.bias" in renamed,
        )
    if module.is_eagle3 and output is None:
        raise ModelError("lm_head.weight is missing")
    own = module.state_dict()
    if missing := sorted(own.keys() - renamed.keys()):
        raise ModelError(f"weights are missing: {', '.join(missing[:3])} ({len(missing)} in all)")
    unknown = sorted(name for name in tensors if _name(name) not in own)
    if unknown:
        raise ModelError(f"it has weights this server has no use for: {', '.join(unknown[:3])}")
    for name, value in renamed.items():
        if value.shape != own[name].shape:
            raise ModelError(f"{name} is {list(value.shape)}, not {list(own[name].shape)}")
    module.load_state_dict(renamed, assign=True)
    module.layer.rotary = LlamaRotaryEmbedding(config.layer).to(target.device)
    shared = target.get_input_embeddings().weight
    if module.embed_tokens is not None and torch.equal(module.embed_tokens.weight, shared.to(dtype)):
        module.embed_tokens = None  # the target's serves, too
    return module


def _name(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name
