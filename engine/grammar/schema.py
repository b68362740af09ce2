"""What is known of a JSON schema before it is compiled: its size, and whether its instances can end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

Schema: TypeAlias = Any  # an object or a boolean, as `json.loads` gives it
Path: TypeAlias = tuple[str | int, ...]

MAX_CHARACTERS = 1 << 17
MAX_DEPTH = 64

_MAPS = ("$defs", "definitions", "properties", "patternProperties")
_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
_SINGLE = ("items", "additionalProperties")


class SchemaError(ValueError):
    """A schema that cannot be followed, and where in it the fault is."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


def parse_schema(text: str) -> dict[str, Any]:
    """Raises SchemaError for text that is no schema, is too large, or has no finite instance."""
    if len(text) > MAX_CHARACTERS:
        raise SchemaError(f"the schema has {len(text)} characters; at most {MAX_CHARACTERS} are taken")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise SchemaError(f"not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise SchemaError("the schema must be an object")
    if "x-guidance" in schema:
        raise SchemaError("this server lays out JSON in one way; leave it out", ("x-guidance",))
    _check_depth(schema)
    endless = _endless(schema)
    if not _ends(schema, endless):
        message = "no answer could ever end: the schema requires itself inside itself"
        raise SchemaError(message, _innermost_endless(schema, endless))
    return schema


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schemas directly inside one, with the way to them; definitions first."""
    for key in _MAPS:
        members = schema.get(key)
        if isinstance(members, dict):
            yield from (((key, name), member) for name, member in members.items() if isinstance(member, dict))
    for key in _LISTS:
        members = schema.get(key)
        if isinstance(members, list):
            yield from (((key, i), member) for i, member in enumerate(members) if isinstance(member, dict))
    yield from (((key,), schema[key]) for key in _SINGLE if isinstance(schema.get(key), dict))


def _check_depth(schema: dict[str, Any]) -> None:
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [
            member
            for value in level
            for member in (value.values() if isinstance(value, dict) else value)
            if isinstance(member, dict | list)
        ]
        if not level:
            return
    raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")


def _endless(root: dict[str, Any]) -> frozenset[str]:
    """The references without a finite instance, as far as required members and items go: what is left of
    the least fixed point, in which none counts as ending until its target does.
    """
    pending = {ref: target for ref in _references(root) if (target := _resolve(root, ref)) is not None}
    while True:
        ending = [ref for ref, target in pending.items() if _ends(target, pending.keys())]
        if not ending:
            return frozenset(pending)
        for ref in ending:
            del pending[ref]


def _innermost_endless(root: dict[str, Any], endless: frozenset[str]) -> Path:
    """The way to the innermost part that has no end, first through what is not a definition."""
    path: Path = ()
    node = root
    while True:
        parts = [(step, part) for step, part in subschemas(node) if not _ends(part, endless)]
        if not parts:
            return path
        step, node = min(parts, key=lambda found: found[0][0] in ("$defs", "definitions"))
        path += step


def _ends(schema: Schema, endless: Any) -> bool:
    """Whether ``schema`` has a finite instance without those of the references in ``endless``."""
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return True
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref in endless:
        return False
    if not all(_ends(part, endless) for part in _list(schema.get("allOf"))):
        return False
    for key in ("anyOf", "oneOf"):
        options = _list(schema.get(key))
        if options and not any(_ends(option, endless) for option in options):
            return False
    kind = schema.get("type")
    if kind == "object":
        return _object_ends(schema, endless)
    return _array_ends(schema, endless) if kind == "array" else True


def _object_ends(schema: dict[str, Any], endless: Any) -> bool:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    other = schema.get("additionalProperties", True)
    names = [name for name in _list(schema.get("required")) if isinstance(name, str)]
    return all(_ends(properties.get(name, other), endless) for name in names)


def _array_ends(schema: dict[str, Any], endless: Any) -> bool:
    least = schema.get("minItems", 0)
    least = least if isinstance(least, int) else 0
    first = _list(schema.get("prefixItems"))
    if not all(_ends(item, endless) for item in first[:least]):
        return False
    return least <= len(first) or _ends(schema.get("items", True), endless)


def _references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*(_references(item) for item in schema))
    if not isinstance(schema, dict):
        return set()
    found = set().union(*(_references(value) for value in schema.values()))
    ref = schema.get("$ref")
    return found | {ref} if isinstance(ref, str) else found


def _resolve(root: dict[str, Any], ref: str) -> Schema | None:
    """The target of a pointer into ``root``; None for anything else, which the compiler will name."""
    if not ref.startswith("#"):
        return None
    node: Any = root
    for part in ref[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
