"""From texts and messages to token ids, off the event loop when that takes long."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypedDict, TypeVar, cast

import jinja2
import tokenizers

from resispec.engine.config import ConfigError
from resispec.engine.text_decoder import TextDecoder

from .chat_template import read_template
from .errors import invalid
from .schemas.validators import is_unicode
from .token_strings import TokenStrings

T = TypeVar("T")

_log = logging.getLogger(__name__)

LONG_TEXT = 4096  # characters; tokenising this many takes about a millisecond


class Tokenizer(Protocol):
    """What the server needs of a transformers tokenizer."""

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer: ...

    chat_template: Any  # a Jinja template, several by name, or None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        continue_final_message: bool,
        **kwargs: Any,
    ) -> Any: ...


def load_tokenizer(path: str, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer in the model folder ``path``. Slow: imports transformers.

    chat_template: see `read_template`; None: the model's own. Raises ConfigError for one that is no Jinja.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    # The context is checked per request, with an answer; the tokenizer would only log a warning.
    tokenizer.model_max_length = 1 << 60
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
        _check_template(tokenizer, chat_template)
    return cast(Tokenizer, tokenizer)


def _check_template(tokenizer: Any, source: str) -> None:
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except jinja2.TemplateSyntaxError as exc:
        raise ConfigError(
            f"chat_template: {source} is not a Jinja template: line {exc.lineno}: {exc.message}",
            "chat_template",
        ) from exc
    except Exception as exc:  # noqa: BLE001  a template may refuse what it likes, with any exception
        _log.warning("the chat template %s refuses a message of a user: %s", source, exc)


class LayoutFields(Protocol):
    """The fields of a body that say how its messages are laid out."""

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool | None: ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...


class LayoutOptions(TypedDict):
    """What `Prompts.chat` is told of them."""

    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: Mapping[str, Any]


def layout_options(body: LayoutFields) -> LayoutOptions:
    """An answer is begun unless the last message is to be continued, or the body says otherwise."""
    begins = body.add_generation_prompt
    return LayoutOptions(
        add_generation_prompt=not body.continue_final_message if begins is None else begins,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs or {},
    )


class Prompts:
    """Encodes prompts for one model. Every fault of the user's is an ApiError with status 400."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # One thread: the tokenizer is not safe to use from several.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self.strings = TokenStrings(tokenizer.backend_tokenizer)
        self._reserved = {"messages", *inspect.signature(tokenizer.apply_chat_template).parameters}

    @property
    def template(self) -> object:
        """The chat template as the tokenizer has it: text, several by name, or None."""
        return self._tokenizer.chat_template

    @property
    def backend(self) -> tokenizers.Tokenizer:
        return self._tokenizer.backend_tokenizer

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def encode(self, prompt: str | list[int]) -> tuple[int, ...]:
        """The token ids of one completion prompt, special tokens added to a text."""
        if isinstance(prompt, list):
            for token_id in prompt:
                if not 0 <= token_id < self._vocab_size:
                    raise invalid("prompt", f"token id {token_id} is not in [0, {self._vocab_size})")
            token_ids = tuple(prompt)
        else:
            token_ids = await self.tokenize(prompt, add_special_tokens=True) if prompt else ()
        if not token_ids:
            raise invalid("prompt", "is empty; send at least one token")
        return token_ids

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The token ids of ``text``, of none when it is empty and nothing is added."""
        return await self._encode("prompt", text, add_special_tokens=add_special_tokens)

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """How the vocabulary spells each token."""
        return self._tokenizer.convert_ids_to_tokens(list(token_ids))

    async def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences that spell ``words``: each as the tokenizer writes it with and without a
        space before it. Other ways to spell a word, with smaller tokens, are not among them.
        """

        def encode() -> tuple[tuple[int, ...], ...]:
            spelled = (prefix + word.lstrip() for word in words for prefix in ("", " "))
            encoded = (tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in spelled)
            return tuple(dict.fromkeys(tokens for tokens in encoded if tokens))

        return await self._run(sum(64 + len(word) for word in words), encode) if words else ()

    async def offsets(self, token_ids: Sequence[int], text: str) -> tuple[int, ...]:
        """Where each token of a prompt begins in its ``text``, in characters."""

        def measure() -> tuple[int, ...]:
            decoder = TextDecoder(self._tokenizer.backend_tokenizer, (), skip_special_tokens=False)
            ends = list(itertools.accumulate(len(decoder.push(token)) for token in token_ids))
            # What encoding put in front, such as a token for the beginning, is not in the text.
            added = max(0, ends[-1] + len(decoder.finish()) - len(text))
            return tuple(min(max(0, start - added), len(text)) for start in [0, *ends[:-1]])

        return await self._run(16 * len(token_ids), measure)

    async def decode(self, token_ids: list[int]) -> str:
        """The text of a prompt given as token ids, special tokens spelled out."""
        return await self._run(
            len(token_ids), lambda: self._tokenizer.decode(token_ids, skip_special_tokens=False)
        )

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any],
        field: str = "messages",
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a conversation, laid out by the model's own chat template.

        field: where the conversation stands in the request, for errors.
        """
        if not self._tokenizer.chat_template:
            raise invalid(field, "this model has no chat template; use /v1/completions")
        for name in template_kwargs:
            if name in self._reserved:
                raise invalid("chat_template_kwargs", f"{name!r} cannot be set there")

        def render() -> str:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **({} if tools is None else {"tools": [dict(tool) for tool in tools]}),
                    **template_kwargs,
                )
            )

        try:
            # Laying out a message takes time even if it is empty.
            length = sum(64 + len(message["content"]) for message in messages)
            # What a template makes of further arguments may be long.
            text = await self._run(LONG_TEXT if template_kwargs or tools else length, render)
        except Exception as exc:
            # Templates refuse what they do not support by raising anything: unknown roles, wrong order.
            raise invalid(field, f"the model's chat template refused them: {exc}") from exc
        token_ids = await self._encode(field, text, add_special_tokens=False)
        if not token_ids:
            raise invalid(field, "the prompt made of them is empty")
        return token_ids

    async def _encode(self, field: str, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        if not is_unicode(text):
            raise invalid(field, "has half a surrogate pair in it")

        def encode() -> tuple[int, ...]:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

        return await self._run(len(text), encode)

    async def _run(self, length: int, work: Callable[[], T]) -> T:
        if length < LONG_TEXT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
