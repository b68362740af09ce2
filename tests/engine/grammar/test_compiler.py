"""What cannot be compiled is refused, in time, and the part at fault is named."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tokenizers import Tokenizer

from resispec.engine.grammar.compiler import MAX_SECONDS, GrammarCompiler
from resispec.engine.grammar.schema import MAX_CHARACTERS, SchemaError, parse_schema
from resispec.engine.request import RequestError, StructuredSpec


@pytest.fixture(scope="module")
def compiler(characters: Tokenizer) -> GrammarCompiler:
    size = characters.get_vocab_size()
    return GrammarCompiler(characters, size, [size - 1])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: list[tuple[Any, str]] = [
    ({"type": "string", "enum": [1, 2]}, "Unsatisfiable"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, r"at properties\.tags: .*uniqueItems"),
    (
        {"properties": {"a": {"anyOf": [{"type": "null"}, {"not": {}}]}}},
        r"at properties\.a\.anyOf\[1\]: .*not",
    ),
    ({"$defs": {"x": {"type": "strang"}}, "items": {"$ref": "#/$defs/x"}}, r"at \$defs\.x: .*strang"),
    ({"type": "object", "properties": {"p": {"type": "string", "pattern": "^(a"}}}, r"at properties\.p: "),
    ({"properties": {"p": {"type": "string", "pattern": "(?=a)b"}}}, r"at properties\.p: .*look-around"),
    ({"properties": {"p": {"type": "string", "format": "colour"}}}, r"at properties\.p: .*colour"),
    ({"$ref": "https://example.com/schema.json"}, "example.com"),
    ({"$ref": "#/$defs/nowhere"}, "nowhere"),
    (
        {"type": "object", "required": ["a"]}
        | {"properties": {"a": {"type": "array", "items": {"type": "string", "enum": [1]}, "minItems": 1}}},
        r"at properties\.a\.items: Unsatisfiable",
    ),
    (
        {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 3}], "title": "none"},
        r"at anyOf\[0\]: .*minimum",
    ),
    ({"$ref": "#"}, "requires itself"),
    (
        {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/x"}]}}, "required": ["a"], "type": "object"}
        | {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}},
        r"at properties\.a\.anyOf\[0\]: .*requires itself",
    ),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "requires itself"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "requires itself"),
    ({"anyOf": [{"type": "string"}], "x-guidance": {}}, "x-guidance"),
    (nested(80), "nested deeper"),
    ({"enum": ["x" * 40] * 4000}, "characters"),
    ({"const": "x" * 9000}, "forces"),
    (
        {"type": "object", "properties": {"a": {"const": "x" * 9000}}, "required": ["a"]},
        r"at properties\.a: it forces",
    ),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED)
def test_schemas(compiler: GrammarCompiler, schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"(?s){message}"):
        compiler.compile(StructuredSpec("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", "[1]"),
        ("json_schema", "true"),
        ("json_schema", "{"),
        ("json_schema", "[" * 100_000),
        ("regex", "(a"),
        ("regex", r"(a)\1"),
        ("regex", "[^\\s\\S]"),
        ("regex", "a{1000000}"),
        ("regex", "((a{100}){100}){100}"),
        ("regex", "x" * (MAX_CHARACTERS + 1)),
        ("choice", "[]"),
        ("choice", json.dumps(["a"] * 5000)),
        ("grammar", "start: nowhere"),
        ("grammar", 'start: "a" start'),
        ("grammar", "root ::= nowhere"),
        ("grammar", ""),
    ],
)
def test_other_kinds(compiler: GrammarCompiler, kind: Any, value: str) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredSpec(kind, value))
    assert caught.value.param == "structured"
    assert time.monotonic() - began < 3 * MAX_SECONDS


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
            "required": ["a"],
        },
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"type": "null"}}},
    ],
)
def test_references_that_end(compiler: GrammarCompiler, schema: dict[str, Any]) -> None:
    compiler.compile(StructuredSpec("json_schema", json.dumps(schema)))


def wide(count: int) -> StructuredSpec:
    """Any of so many keys, which are all open behind the brace."""
    properties = {f"k{number}": {"type": "null"} for number in range(count)}
    return StructuredSpec("json_schema", json.dumps({"properties": properties, "type": "object"}))


def test_a_wide_object_is_followed_or_refused_at_once(
    compiler: GrammarCompiler, characters: Tokenizer
) -> None:
    state = compiler.compile(wide(3000)).start()
    assert state.commit(characters.encode('{"k2999": null, "new": ').ids) is None
    with pytest.raises(RequestError, match="too complex"):
        compiler.compile(wide(4500))


@pytest.mark.parametrize(("kind", "value"), [("regex", "[^\\s\\S]"), ("grammar", 'start: start "a"')])
def test_what_nothing_satisfies_is_said_plainly(compiler: GrammarCompiler, kind: Any, value: str) -> None:
    with pytest.raises(RequestError, match="nothing can satisfy it"):
        compiler.compile(StructuredSpec(kind, value))


def test_two_schemas_that_require_each_other() -> None:
    member = {"type": "object", "required": ["next"]}
    schema = {
        "$defs": {
            "a": {**member, "properties": {"next": {"$ref": "#/$defs/b"}}},
            "b": {**member, "properties": {"next": {"$ref": "#/$defs/a"}}},
        },
        "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    }
    with pytest.raises(SchemaError, match="requires itself"):
        parse_schema(json.dumps(schema))


def test_a_model_without_an_end(characters: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no token that ends"):
        GrammarCompiler(characters, characters.get_vocab_size(), [])


def test_a_tokenizer_without_bytes(tiny: Any) -> None:
    with pytest.raises(RequestError, match="tokenizer"):
        GrammarCompiler(tiny.tokenizer(), 128, [1])
