"""What a draft head is made of, and which target it was trained for."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, TypeVar

from ..base import ModelError

MODEL_TYPE = "resispec-head"


@dataclass(frozen=True, slots=True)
class TargetFingerprint:
    """Marks of the one target whose hidden states a head understands."""

    name: str  # for messages only, never compared
    vocab_size: int  # rows of the output matrix
    hidden_size: int
    tokenizer_hash: str  # sha256 over every (token, id) of the tokenizer's vocabulary
    output_sketch: tuple[float, ...]  # projections of a few rows of the output matrix, see fingerprint.py


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a draft head: one Llama-type decoder layer on the target's hidden states."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    max_positions: int
    draft_vocab_size: int  # columns of the head's logits
    target: TargetFingerprint

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value <= 0:
                raise ModelError(f"head config: {field.name} is {value}, it must be above 0")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"head config: num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ModelError(f"head config: head_dim {self.head_dim} is odd; rotary positions need pairs")
        if self.draft_vocab_size > self.target.vocab_size:
            raise ModelError(
                f"head config: draft_vocab_size {self.draft_vocab_size} is above "
                f"the target's vocabulary of {self.target.vocab_size}"
            )

    def to_json(self) -> str:
        """The content of ``config.json``."""
        return json.dumps({"model_type": MODEL_TYPE, **dataclasses.asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> HeadConfig:
        """The config that ``to_json`` wrote; ModelError names the field that is wrong."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ModelError(f"head config: not JSON: {error}") from error
        if not isinstance(values, dict) or values.pop("model_type", None) != MODEL_TYPE:
            raise ModelError(f'head config: model_type is not "{MODEL_TYPE}", so this is no draft head')
        target = _build(TargetFingerprint, values.get("target"), "head config: target")
        values["target"] = dataclasses.replace(target, output_sketch=tuple(target.output_sketch))
        return _build(cls, values, "head config")


_T = TypeVar("_T")
_JSON_TYPES: dict[str, type[Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "tuple[float, ...]": list,
    "TargetFingerprint": TargetFingerprint,
}


def _build(kind: type[_T], values: Any, where: str) -> _T:
    if not isinstance(values, dict):
        raise ModelError(f"{where} is missing or no object")
    field_types = {field.name: str(field.type) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    fields = {name: _JSON_TYPES[field_type] for name, field_type in field_types.items()}
    missing, unknown = fields.keys() - values.keys(), values.keys() - fields.keys()
    if missing or unknown:
        raise ModelError(f"{where}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    for name, wanted in fields.items():
        value = values[name]
        fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
        if wanted is list:
            fits = fits and all(isinstance(number, float) for number in value)
        if not fits or isinstance(value, bool):
            raise ModelError(f"{where}: {name} is {value!r}, not {field_types[name]}")
    return kind(**values)
