"""What the engine needs to know of a model and finds in its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resispec.models.base import ModelError

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
SAMPLING_KEYS: dict[str, tuple[float, float]] = {  # and what a default may be
    "temperature": (0.0, 1e6),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 1e9),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 1e6),
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    max_positions: int  # the model's context, in tokens
    eos_token_ids: tuple[int, ...]  # any of them ends an answer; sorted
    generation_defaults: dict[str, float]  # sampling parameters its generation_config.json names


def read_facts(folder: Path, model: Any, tokenizer: Any) -> ModelFacts:
    """Collect the facts of a model loaded from ``folder``. Raises ModelError."""
    return ModelFacts(
        max_positions=_max_positions(model.config),
        eos_token_ids=_eos_token_ids(model, tokenizer),
        generation_defaults=_generation_defaults(folder / "generation_config.json"),
    )


def _max_positions(config: Any) -> int:
    for key in CONTEXT_KEYS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelError(f"config.json does not say how long the context is (none of {', '.join(CONTEXT_KEYS)})")


def _eos_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The generation configuration's ids and the tokenizer's own: chat models end turns with either."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return tuple(sorted(int(token) for token in found))


def _generation_defaults(path: Path) -> dict[str, float]:
    """From the file, not the loaded object, which fills in what the file does not say."""
    if not path.is_file():
        return {}
    try:
        raw = json.loads(path.read_text())
        defaults = {key: float(raw[key]) for key in SAMPLING_KEYS if raw.get(key) is not None}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    for key, value in defaults.items():
        low, high = SAMPLING_KEYS[key]
        if not low <= value <= high:  # requests without the parameter would all be refused
            raise ModelError(f"{path}: {key} is {value:g}, which is not in [{low:g}, {high:g}]")
    return defaults
