"""From what a body asks of its answer's form to what the engine follows, checked before anything runs."""

from __future__ import annotations

import asyncio
import json

from resispec.engine.grammar.cache import GrammarCache
from resispec.engine.grammar.compiler import GrammarCompiler
from resispec.engine.outputs import EngineInfo
from resispec.engine.request import RequestError, StructuredSpec

from .errors import invalid
from .prompts import Tokenizer
from .schemas.chat import ChatRequest
from .schemas.common import GenerationBody
from .schemas.completions import CompletionRequest
from .schemas.responses import ResponsesRequest, TextOptions
from .schemas.structured import ResponseFormat, StructuredOutputs
from .schemas.validators import is_unicode

COMPILE_SECONDS = 10.0  # a request waits for its grammar; the first one also for the tokenizer's tables


class Grammars:
    """Compiles grammars only to see whether the engine will be able to follow them."""

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo) -> None:
        self._cache = GrammarCache(
            lambda: GrammarCompiler(tokenizer.backend_tokenizer, info.vocab_size, info.eos_token_ids)
        )

    def close(self) -> None:
        self._cache.close()

    async def wanted(self, body: ChatRequest | CompletionRequest | ResponsesRequest) -> StructuredSpec | None:
        """What ``body`` asks of its answer's form. Raises ApiError 400 for what cannot be followed."""
        found = asked_form(body)
        if found is None:
            return None
        spec, field = found
        refuse_other_rules(body, field.partition(".")[0])
        await self.check(spec, field)
        return spec

    async def check(self, spec: StructuredSpec, field: str) -> None:
        """Raises ApiError 400, naming ``field`` and the part of it that is at fault."""
        if not is_unicode(spec.value):
            raise invalid(field, "has half a surrogate pair in it")
        compiled = asyncio.wrap_future(self._cache.get(spec))
        try:
            await asyncio.wait_for(asyncio.shield(compiled), COMPILE_SECONDS)
        except RequestError as exc:
            raise invalid(field, exc.message) from exc
        except TimeoutError as exc:
            raise invalid(field, f"compiling it takes longer than {COMPILE_SECONDS:g} s") from exc


def refuse_other_rules(body: GenerationBody, field: str) -> None:
    """Two rules for what comes next, or for where the answer ends, may leave no token at all.

    field: what asks for the form. Raises ApiError 400.
    """
    for name in ("min_tokens", "ignore_eos", "bad_words", "allowed_token_ids"):
        if getattr(body, name):
            raise invalid(name, f"not together with {field}")


Wanted = tuple[StructuredSpec, str]
"""What is asked for, and the field that asks."""


def asked_form(body: ChatRequest | CompletionRequest | ResponsesRequest) -> Wanted | None:
    """None: free text. Raises ApiError 400 for two forms at once."""
    if isinstance(body, ResponsesRequest):
        formatted = _from_text(body.text)
    else:
        formatted = _from_response_format(body.response_format)
    return _one(formatted, body.structured_outputs)


def _one(formatted: Wanted | None, structured_outputs: StructuredOutputs | None) -> Wanted | None:
    """The one that there is; None: free text. Raises ApiError 400 for two at once."""
    if structured_outputs is None:
        return formatted
    if formatted is not None:
        other = formatted[1].partition(".")[0]
        raise invalid("structured_outputs", f"not together with {other}; send one of them")
    return _from_structured_outputs(structured_outputs)


def _from_text(text: TextOptions | None) -> Wanted | None:
    wanted = text.format if text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return StructuredSpec("json_object"), "text.format"
    return StructuredSpec("json_schema", json.dumps(wanted.schema_)), "text.format.schema"


def _from_response_format(wanted: ResponseFormat | None) -> Wanted | None:
    if wanted is None:
        return None
    if wanted.type == "json_schema" and wanted.json_schema is not None:
        schema = wanted.json_schema.schema_
        return StructuredSpec("json_schema", json.dumps(schema or {})), "response_format.json_schema.schema"
    return (StructuredSpec("json_object"), "response_format") if wanted.type == "json_object" else None


def _from_structured_outputs(wanted: StructuredOutputs) -> Wanted:
    if wanted.json_ is not None:
        text = wanted.json_ if isinstance(wanted.json_, str) else json.dumps(wanted.json_)
        return StructuredSpec("json_schema", text), "structured_outputs.json"
    if wanted.regex is not None:
        return StructuredSpec("regex", wanted.regex), "structured_outputs.regex"
    if wanted.choice is not None:
        return StructuredSpec("choice", json.dumps(wanted.choice)), "structured_outputs.choice"
    if wanted.grammar is not None:
        return StructuredSpec("grammar", wanted.grammar), "structured_outputs.grammar"
    return StructuredSpec("json_object"), "structured_outputs.json_object"
