"""What a folder given as a draft holds."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from .head.config import MODEL_TYPE
from .medusa import CONFIG_KEYS


class DraftKind(StrEnum):
    MODEL = "model"  # a causal model of its own
    HEAD = "head"  # made by `resispec distill`
    EAGLE = "eagle"  # a public EAGLE head, of any generation
    MEDUSA = "medusa"  # public Medusa heads


def draft_kind(folder: Path) -> DraftKind:
    """By the configuration; an EAGLE head in its authors' layout, which looks like a model's, by its weights.

    What cannot be read counts as a model, whose loader tells what is wrong with it.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return DraftKind.MODEL
    if not isinstance(config, dict):
        return DraftKind.MODEL
    if config.get("model_type") == MODEL_TYPE:
        return DraftKind.HEAD
    if any(key in config for key in CONFIG_KEYS):
        return DraftKind.MEDUSA
    if "speculators_model_type" in config or "draft_vocab_size" in config or _fuses(folder):
        return DraftKind.EAGLE
    return DraftKind.MODEL


def _fuses(folder: Path) -> bool:
    """Whether there is the layer that joins a token and a state: no causal model has one."""
    from .base import ModelError
    from .eagle.checkpoint import tensor_names

    try:
        return "fc.weight" in tensor_names(folder)
    except ModelError:
        return False
