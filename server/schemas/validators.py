"""Small checks that the request schemas share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_PROPOSERS = 16  # names in one request
MAX_BAD_WORDS = 256
MAX_PROMPTS = 65536  # in one request; a server takes far fewer
MAX_STRING = 1024  # characters of a stop string or bad word
NO_EFFECT = "Accepted, without effect."
"""The description of a field that clients send without meaning anything by it here."""


@dataclass(frozen=True, eq=False)  # `Annotated` keeps one of equal marks, and 0 == False
class Only:
    """See `only`."""

    no_ops: tuple[object, ...]

    def check(self, value: Any) -> Any:
        # Compared with their types: 0 == False, yet `logprobs: 0` asks for something.
        if value is None or any(type(value) is type(no_op) and value == no_op for no_op in self.no_ops):
            return value
        raise PydanticCustomError("unsupported_parameter", "this server does not support it; leave it out")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self,
        schema: CoreSchema,
        handler: GetJsonSchemaHandler,
    ) -> dict[str, Any]:
        return {"enum": [None, *self.no_ops], "description": "Known, and not supported: only without effect."}


def only(*no_ops: object) -> Only:
    """For a field this server knows but does not honour: refuse all values except those without effect."""
    return Only(no_ops)


def check_prompt(value: object) -> list[str] | list[list[int]]:
    """One or several prompts, as texts or as token ids, always as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _token_ids(value):
            return [value]
        if len(value) > MAX_PROMPTS:
            raise PydanticCustomError("invalid_value", "has more than {most} prompts", {"most": MAX_PROMPTS})
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) and _token_ids(item) for item in value):
            return value
    raise PydanticCustomError(
        "invalid_value",
        "must be a string, a list of strings, a list of token ids or a list of lists of token ids, not empty",
    )


def _token_ids(values: list[object]) -> bool:
    return all(type(item) is int for item in values)


def check_stop(value: object) -> tuple[str, ...]:
    """Stop strings: none, one, or a list of up to four, none of them empty or longer than `MAX_STRING`."""
    values = [] if value is None else [value] if isinstance(value, str) else value
    if isinstance(values, list) and len(values) <= 4:
        strings = tuple(
            item
            for item in values
            if isinstance(item, str) and 0 < len(item) <= MAX_STRING and is_unicode(item)
        )
        if len(strings) == len(values):
            return strings
    raise PydanticCustomError(
        "invalid_value",
        "must be a string or a list of up to 4 strings, none empty, none of more than {length} characters",
        {"length": MAX_STRING},
    )


def check_bad_words(value: object) -> tuple[str, ...]:
    """Words that must not be written: up to `MAX_BAD_WORDS`, none blank, none longer than `MAX_STRING`."""
    values = [] if value is None else value
    if isinstance(values, list) and len(values) <= MAX_BAD_WORDS:
        words = tuple(
            item
            for item in values
            if isinstance(item, str) and item.strip() and len(item) <= MAX_STRING and is_unicode(item)
        )
        if len(words) == len(values):
            return words
    raise PydanticCustomError(
        "invalid_value",
        "must be a list of up to {most} strings, none blank, none of more than {length} characters",
        {"most": MAX_BAD_WORDS, "length": MAX_STRING},
    )


def check_proposers(value: object) -> tuple[str, ...]:
    """Names of proposers: none, a list, or one string with commas between them. Repeated ones count once."""
    values = [] if value is None else value.split(",") if isinstance(value, str) else value
    if isinstance(values, list) and len(values) <= MAX_PROPOSERS:
        names = [item.strip() for item in values if isinstance(item, str) and is_unicode(item)]
        if len(names) == len(values) and all(names) and (names or value is None):
            return tuple(dict.fromkeys(names))
    raise PydanticCustomError("invalid_value", "must be names with commas between them, or a list of names")


def check_logit_bias(value: object) -> dict[str, float] | None:
    """Biases by token id; the ids are strings in JSON, and what they mean is not looked at here."""
    if value is None:
        return None
    # NaN is in no range. The first fault ends it: a list of 100,000 would hold up everybody's streams.
    if isinstance(value, dict) and all(type(b) in (int, float) and -100 <= b <= 100 for b in value.values()):
        return value
    raise PydanticCustomError("invalid_value", "must map token ids to numbers from -100 to 100")


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be encoded: JSON may spell half a surrogate pair, which no text contains."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(text: str) -> str:
    """Refuse half a surrogate pair in a text that is sent back."""
    if not is_unicode(text):
        raise PydanticCustomError("invalid_value", "has half a surrogate pair in it")
    return text


def unknown_fields(model: BaseModel, prefix: str = "") -> Iterator[str]:
    """The names of fields that no schema declares, nested ones included, unless they are null."""
    for name, value in (model.model_extra or {}).items():
        if value is not None:
            yield prefix + name
    for name in model.model_fields_set & type(model).model_fields.keys():
        value = getattr(model, name)
        for position, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, BaseModel):
                where = f"{name}[{position}]" if isinstance(value, list) else name
                yield from unknown_fields(item, f"{prefix}{where}.")
