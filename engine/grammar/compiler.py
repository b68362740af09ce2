"""From what a user sends to a matcher, with bounds on size and time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..request import RequestError, StructuredSpec
from .schema import MAX_CHARACTERS, Path, SchemaError, parse_schema, subschemas
from .state import CompiledGrammar

MAX_SECONDS = 2.0  # to compile and to give the first masks
_MAX_MASK_SECONDS = 0.05  # of a mask once its grammar is warm: everybody in the step waits for it
_MAX_ITEMS = 16_384  # of the parser at one place; an optional property of an object is four
_FIRST_STEPS = 4  # tokens of an answer that are tried: a wide object shows behind its brace
_TOO_COMPLEX = "it is too complex to be followed in time"
_MAX_FORCED = 8192  # bytes that a grammar may force in one run; one that forces more may never end
_FORCES_MUCH = f"it forces a run of more than {_MAX_FORCED} bytes, or one without end"
_LOCATE_SECONDS = 1.0  # to find the part of a schema that is at fault
_MAX_CHOICES = 4096
_UNSATISFIABLE = "Unsatisfiable"  # how the library begins what it says of that, whatever the reason
# One way to lay out JSON, so that its structure is forced; a model cannot get lost in white space.
JSON_LAYOUT: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
}


class GrammarCompiler:
    """Makes matchers for one tokenizer. Stateless but for the tokenizer's tables, which take a moment."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """vocab_size: ids from here on do not exist. Raises RequestError if the tokenizer cannot be used."""
        if not eos_token_ids:
            raise RequestError(
                "this model has no token that ends an answer, which a grammar needs", "structured"
            )
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        self._vocab_size = vocab_size
        self._eos = frozenset(eos_token_ids)
        self._mask_ids = max(vocab_size, plain.get_vocab_size(with_added_tokens=True))
        try:
            self._tokenizer = LLTokenizer(
                plain.to_str(), n_vocab=self._mask_ids, eos_token=list(eos_token_ids)
            )
        except (ValueError, RuntimeError) as error:
            raise RequestError(
                f"this model's tokenizer cannot be used with grammars: {error}", "structured"
            ) from None
        # A fifth of the library's own: 10,000 characters of schema take about a tenth of that.
        self._limits = LLParserLimits(
            initial_lexer_fuel=200_000,
            max_lexer_states=50_000,
            max_items_in_row=_MAX_ITEMS,
            verbose_errors=False,
        )

    def compile(self, spec: StructuredSpec) -> CompiledGrammar:
        """Raises RequestError naming the part at fault, also for what would take too long."""
        began = time.perf_counter()
        try:
            grammar, schema = _grammar(spec)
        except SchemaError as error:
            raise _refusal(error.message, error.path) from None
        matcher, fault = self._match(grammar)
        path: Path
        if matcher is None:
            path = ()
            if schema is not None:
                path, fault = _locate(schema, fault, lambda part: self._match(_json_grammar(part))[1])
            raise _refusal(fault, path)
        if _forces_much(matcher):
            path = ()
            if schema is not None:
                path, _ = _locate(schema, _FORCES_MUCH, self._forcing_fault)
            raise _refusal(_FORCES_MUCH, path)
        if not self._begins_well(matcher.deep_copy()) or time.perf_counter() - began > MAX_SECONDS:
            raise _refusal(_TOO_COMPLEX)
        return CompiledGrammar(matcher, self._mask_ids, self._vocab_size, self._eos)

    def _match(self, grammar: str) -> tuple[LLMatcher | None, str]:
        """The matcher, its first mask computed; or None and why not."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            self._mask(matcher)
        if matcher.is_error():
            return None, _readable(matcher.get_error())
        return matcher, ""

    def _forcing_fault(self, part: dict[str, Any]) -> str:
        matcher, fault = self._match(_json_grammar(part))
        return fault if matcher is None else _FORCES_MUCH * _forces_much(matcher)

    def _begins_well(self, matcher: LLMatcher) -> bool:
        """Whether an answer's first tokens, of some answer, stay within the library's limits, in time."""
        for _ in range(_FIRST_STEPS):
            began = time.perf_counter()
            words = self._mask(matcher)
            if time.perf_counter() - began > _MAX_MASK_SECONDS:
                return False
            token = int(np.unpackbits(words.view(np.uint8), bitorder="little").argmax())
            if token in self._eos or matcher.is_stopped():
                return not matcher.is_error()
            if not matcher.consume_token(token):
                return False
        return True

    def _mask(self, matcher: LLMatcher) -> NDArray[np.int32]:
        words = np.zeros(-(-self._mask_ids // 32), dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return words


def _readable(error: str) -> str:
    """The library's words, but where it only says that no text leads anywhere."""
    text = error.strip()
    return "nothing can satisfy it" if not text or text.startswith("NoExtension") else text


def _forces_much(matcher: LLMatcher) -> bool:
    return len(matcher.compute_ff_bytes()) > _MAX_FORCED


def _grammar(spec: StructuredSpec) -> tuple[str, dict[str, Any] | None]:
    """Llguidance's own form, and the schema if there is one."""
    if len(spec.value) > MAX_CHARACTERS:
        raise SchemaError(f"{len(spec.value)} characters; at most {MAX_CHARACTERS} are taken")
    if spec.kind in ("json_schema", "json_object"):
        schema = parse_schema(spec.value) if spec.kind == "json_schema" else {"type": "object"}
        return _json_grammar(schema), schema
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.value), None
    if spec.kind == "choice":
        choices = json.loads(spec.value)
        if not choices or len(choices) > _MAX_CHOICES:
            raise SchemaError(f"{len(choices)} choices; from 1 to {_MAX_CHOICES} are taken")
        options = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return LLMatcher.grammar_from_lark(f"start: {options}"), None
    try:
        return grammar_from("grammar", spec.value), None
    except ValueError as error:  # GBNF is translated here, Lark is read later
        raise SchemaError(str(error)) from None


def _json_grammar(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_LAYOUT)  # type: ignore[arg-type]


def _locate(
    root: dict[str, Any], fault: str, compile_part: Callable[[dict[str, Any]], str]
) -> tuple[Path, str]:
    """The way to the innermost part of ``root`` that fails alone in the same way, and what is said of it."""
    stop = time.perf_counter() + _LOCATE_SECONDS
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    path: Path = ()
    node = root
    while True:
        for step, part in subschemas(node):
            if time.perf_counter() > stop:
                return path, fault
            own = compile_part(part | definitions)
            if own == fault or (own.startswith(_UNSATISFIABLE) and fault.startswith(_UNSATISFIABLE)):
                path, node, fault = path + step, part, own
                break
        else:
            return path, fault


def _refusal(message: str, path: Path = ()) -> RequestError:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    return RequestError(f"at {where}: {message}" if where else message, "structured")
