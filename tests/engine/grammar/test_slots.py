"""Values of the prompt as candidates for a JSON answer's slots."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from resispec.engine.engine import Engine
from resispec.engine.grammar.compiler import GrammarCompiler
from resispec.engine.grammar.prompt_values import PromptValues, Slot, slot_at_end
from resispec.engine.grammar.slots import SlotSource
from resispec.engine.request import Request, SamplingParams, SpeculationParams, StructuredSpec

PROMPT = (
    'A record for Ola Nordmann who is here, 29 years old. His city: Oslo, street = "12 Main Street". '
    "Mail ola@example.org. Postal code: 01234; age is 29."
)
TEXT = {"type": "string", "maxLength": 30}
SCHEMA = {
    "type": "object",
    "properties": {"city": TEXT, "postalCode": TEXT, "age": {"type": "integer"}},
    "required": ["city", "postalCode", "age"],
    "additionalProperties": False,
}
SPEC = StructuredSpec("json_schema", json.dumps(SCHEMA))


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ('{"a": 1, "name": "Ola', Slot("name", "Ola", True)),
        ('{"name": "', Slot("name", "", True)),
        ('{"age": 2', Slot("age", "2", False)),
        ('{"age": -1.', Slot("age", "-1.", False)),
        ('{"age": ', Slot("age", "", None)),
        ('{"age":', Slot("age", "", None, " ")),
        ('{"a": "x"', None),
        ('{"na', None),
        ("", None),
    ],
)
def test_slots(text: str, slot: Slot | None) -> None:
    assert slot_at_end(text) == slot


@pytest.mark.parametrize(
    ("key", "begun", "is_string", "values"),
    [
        ("city", "", True, ("Oslo",)),
        ("street", "", True, ("12 Main Street",)),
        ("postalCode", "", True, ("01234",)),
        ("postal_code", "0", True, ("01234",)),
        ("age", "", False, ("29",)),
        ("years", "2", False, ("29",)),
        ("name", "", True, ()),
        ("name", "Ola", True, ("Ola Nordmann",)),
        ("name", "Ola Nordmann w", True, ("Ola Nordmann who",)),
        ("mail", "ola", True, ("ola@example.org",)),
        ("name", "dmann", True, ()),
        ("name", "Bob", True, ()),
        ("", "", True, ()),
        ("...", "", True, ()),
    ],
)
def test_values(key: str, begun: str, is_string: bool, values: tuple[str, ...]) -> None:
    assert PromptValues(PROMPT).candidates(Slot(key, begun, is_string)) == values


def source(characters: Tokenizer, answer: str) -> tuple[SlotSource, list[int]]:
    """Behind the prompt and the beginning of an answer."""
    size = characters.get_vocab_size()
    state = GrammarCompiler(characters, size, [size - 1]).compile(SPEC).start()
    prompt, begun = characters.encode(PROMPT).ids, characters.encode(answer).ids
    state.commit(begun)
    return SlotSource(state, characters, prompt), prompt + begun


def test_a_path_goes_from_slot_to_slot(characters: Tokenizer) -> None:
    made, tokens = source(characters, '{"city": "')
    (path,) = made.paths(tokens, 60)
    assert characters.decode(list(path.tokens)) == 'Oslo", "postalCode": "01234", "age": 29}'
    assert path.chances[0] < path.chances[1] < 1.0, "the beginning of a value is the hardest to guess"
    assert 1.0 in path.chances
    made, tokens = source(characters, '{"city":')
    path, opened = made.paths(tokens, 9)
    assert characters.decode(list(path.tokens)) == ' "Oslo", '
    assert characters.decode(list(opened.tokens)) == ' "'
    made, tokens = source(characters, '{"city": "x", "postalCode": "y", "age":')
    assert characters.decode(list(made.paths(tokens, 9)[0].tokens)) == " 29}"


def test_paths_are_no_longer_than_asked_for(characters: Tokenizer) -> None:
    made, tokens = source(characters, '{"city": "')
    (path,) = made.paths(tokens, 60)
    (short,) = made.paths(tokens, 5)
    assert short.tokens == path.tokens[:5]


def test_what_the_form_excludes_is_cut(characters: Tokenizer) -> None:
    made, tokens = source(characters, '{"city": "Osl')
    assert characters.decode(list(made.paths(tokens, 2)[0].tokens)) == 'o"'
    made, tokens = source(characters, '{"city": "x", "postalCode": "y", "age": 2')
    assert characters.decode(list(made.paths(tokens, 9)[0].tokens)) == "9}"


def test_it_learns_whether_it_is_right(characters: Tokenizer) -> None:
    made, tokens = source(characters, '{"city": "')
    before = made.paths(tokens, 3)[0].chances
    made.committed([*tokens, *characters.encode("Rome").ids], len(tokens))
    wrong = made.paths(tokens, 3)[0].chances
    assert wrong[0] < before[0]
    made.committed([*tokens, *characters.encode("Oslo").ids], len(tokens))
    assert made.paths(tokens, 3)[0].chances[0] > wrong[0]


def test_the_running_engine_asks_it(
    tiny: Any, grammar_engine: Callable[..., Engine], characters: Tokenizer
) -> None:
    """A model that would rather write something else is not talked into it; what it is right in is kept."""
    engine = grammar_engine(characters, max_model_len=256)
    prompt = tuple(characters.encode(PROMPT[-120:]).ids)
    base = Request("tree", prompt, SamplingParams(0, structured=SPEC, max_tokens=100))
    plain = replace(base, request_id="plain", speculation=SpeculationParams(enabled=False))
    sampled = [
        replace(base, request_id=str(seed), sampling=replace(base.sampling, temperature=1.0, seed=seed))
        for seed in range(6)
    ]
    ran = tiny.run(engine, [base, plain, *sampled])
    assert ran.text["tree"] == ran.text["plain"]
    counts = [last.metrics.speculation.by_source for name, last in ran.last.items() if name != "plain"]
    assert any(count.source == "prompt" for sources in counts for count in sources)
