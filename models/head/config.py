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
    """Sizes of a draft head: a Llama-type decoder layer on the target's hidden states."""

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
    # Layers of the target, from 0, whose inputs it reads as well. Heads of earlier versions do not say.
    target_layers: tuple[int, ...] = ()

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
        if min(self.target_layers, default=0) < 0 or len(set(self.target_layers)) < len(self.target_layers):
            raise ModelError(
                f"head config: target_layers is {list(self.target_layers)}; "
                "name layers of the target, each once, counted from 0"
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
        built = _build(cls, values, "head config")
        return dataclasses.replace(built, target_layers=tuple(built.target_layers))


_T = TypeVar("_T")
_JSON_TYPES: dict[str, type[Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "tuple[int, ...]": list,
    "tuple[float, ...]": list,
    "TargetFingerprint": TargetFingerprint,
}


def _build(kind: type[_T], values: Any, where: str) -> _T:
    if not isinstance(values, dict):
        raise ModelError(f"{where} is missing or no object")
    known = dataclasses.fields(kind)  # type: ignore[arg-type]
    defaults = {field.name: field.default for field in known if field.default is not dataclasses.MISSING}
    field_types = {field.name: str(field.type) for field in known}
    missing = field_types.keys() - values.keys() - defaults.keys()
    unknown = values.keys() - field_types.keys()
    if missing or unknown:
        raise ModelError(f"{where}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    for name, value in values.items():
        wanted = _JSON_TYPES[field_types[name]]
        fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
        if wanted is list:
            kept = int if "int" in field_types[name] else float
            fits = fits and all(type(number) is kept for number in value)
        if not fits or isinstance(value, bool):
            raise ModelError(f"{where}: {name} is {value!r}, not {field_types[name]}")
    return kind(**values)
