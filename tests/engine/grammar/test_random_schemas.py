"""Random schemas: every finished answer satisfies its schema, says a validator of somebody else's.

``RESISPEC_SCHEMAS=1000 pytest -s tests/engine/grammar/test_random_schemas.py`` tries as many with the small
model; by default it is a few.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from resispec.engine.config import EngineConfig
from resispec.engine.grammar.compiler import GrammarCompiler
from resispec.engine.load import build_engine
from resispec.engine.request import Request, SamplingParams, SpeculationParams, StructuredSpec

WITH_MODEL = int(os.environ.get("RESISPEC_SCHEMAS", "12"))


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """Nested objects and arrays, enums, patterns, formats, bounds, unions and recursion."""
    kinds = ["string", "pattern", "format", "integer", "number", "boolean", "null", "enum", "const"]
    kind = rng.choice(kinds + ["array", "object", "object", "anyOf", "list", "allOf"] * (depth > 0))
    if kind == "string":
        least = rng.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 9)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-z]{2,5}$", "^(a|bc)d?$", r"^\d{3}-\d{4}$"])}
    if kind == "format":
        return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4"])}
    if kind in ("integer", "number"):
        least = rng.randint(-50, 50)
        return {"type": kind, "minimum": least, "maximum": least + rng.randint(0, 500)}
    if kind == "enum":
        return {
            "enum": rng.sample(["a", "a b", 1, 2.5, None, True, [1], {"x": 1}, 'q"', "ü"], rng.randint(1, 4))
        }
    if kind == "const":
        return {"const": rng.choice(["fixed", 7, None, False])}
    if kind == "array":
        least = rng.randint(0, 2)
        items = random_schema(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    if kind == "allOf":
        return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 20}]}
    if kind == "list":  # linked
        link = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]}
        value = {"type": "integer", "minimum": 0, "maximum": 9}
        return {
            "$defs": {"link": closed({"value": value, "next": link}, ["value", "next"])},
            "$ref": "#/$defs/link",
        }
    if kind == "object":
        names = rng.sample(
            ["id", "name", "two words", "a/b", "ünï", "$x", "tags", 'say "hi"'], rng.randint(0, 4)
        )
        properties = {name: random_schema(rng, depth - 1) for name in names}
        return closed(properties, [name for name in names if rng.random() < 0.7])
    return {"type": kind}


def closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def with_definitions_on_top(schema: dict[str, Any]) -> dict[str, Any]:
    """References go to the document's own definitions, wherever the schema that made them ended up."""
    found: dict[str, Any] = {}

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            found.update(node.get("$defs", {}))
            return {key: strip(value) for key, value in node.items() if key != "$defs"}
        return [strip(item) for item in node] if isinstance(node, list) else node

    stripped: dict[str, Any] = strip(schema)
    return stripped | {"$defs": found} if found else stripped


def check(text: str, schema: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


def test_random_walks(characters: Tokenizer) -> None:
    """Without a model: any allowed token at every step."""
    size = characters.get_vocab_size()
    compiler = GrammarCompiler(characters, size, [size - 1])
    finished = 0
    for seed in range(300):
        rng = random.Random(seed)
        schema = with_definitions_on_top(random_schema(rng))
        state = compiler.compile(StructuredSpec("json_schema", json.dumps(schema))).start()
        tokens: list[int] = []
        end = None
        while end is None and len(tokens) < 400:
            allowed = np.flatnonzero(np.unpackbits(state.allowed(()), bitorder="little")[:size])
            token = int(rng.choice(allowed))
            end = state.commit([token])
            tokens.append(token)
        if end is not None:
            check(characters.decode(tokens, skip_special_tokens=True), schema)
            finished += 1
    assert finished > 250


@pytest.mark.slow
def test_the_small_model() -> None:
    """Sampled and greedy, with trees; what is capped says so, and greedy text is that of plain decoding.

    In float32: there a step of another size does not round to another token.
    """
    engine = build_engine(
        EngineConfig(target="default", draft="default", dtype="float32", max_num_seqs=16, num_threads=1)
    )
    schemas = {
        seed: with_definitions_on_top(random_schema(random.Random(10_000 + seed)))
        for seed in range(WITH_MODEL)
    }
    texts: dict[str, str] = defaultdict(str)
    reasons: dict[str, str] = {}
    for seed, schema in schemas.items():
        sampling = SamplingParams(
            temperature=float(seed % 2),
            seed=seed,
            max_tokens=200,
            structured=StructuredSpec("json_schema", json.dumps(schema)),
        )
        engine.add(Request(str(seed), tuple(range(500, 520)), sampling))
        if sampling.temperature == 0:
            plain = SpeculationParams(enabled=False)
            engine.add(Request(f"{seed} plain", tuple(range(500, 520)), sampling, plain))
    while engine.has_work:
        for output in engine.step().outputs:
            texts[output.request_id] += output.text
            if output.finish_reason is not None:
                assert output.error is None, output.error
                reasons[output.request_id] = output.finish_reason.value
    for seed, schema in schemas.items():
        if reasons[str(seed)] == "stop":
            check(texts[str(seed)], schema)
        if seed % 2 == 0:
            assert texts[str(seed)] == texts[f"{seed} plain"]
            assert reasons[str(seed)] == reasons[f"{seed} plain"]
    ended = Counter(reasons[str(seed)] for seed in schemas)
    print(f"{WITH_MODEL} schemas: {ended['stop']} answers finished, {ended['length']} were capped")
    assert ended["stop"] + ended["length"] == WITH_MODEL
    assert ended["stop"] > 0.8 * WITH_MODEL
