"""Turns token ids into text one at a time, never showing half a character.

``tokenizers.decoders.DecodeStream`` does this too, but it releases nothing while a run of invalid bytes
lasts, decodes the whole run again at every token (465 us a token after 3,000 of them, against 4 here), and
cannot be flushed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer, decoders

REPLACEMENT = "\ufffd"
PROMPT_TAIL = 6  # tokens of the prompt that are decoded along, for the spacing of the first word
KEPT = 3  # tokens: an incomplete character spans no more
MAX_PENDING = 8  # tokens after which text that still ends in U+FFFD is given out


class TextDecoder:
    """Decodes a growing sequence in constant time per token.

    A short window of the latest tokens is decoded anew for every token; what is longer than the text
    already given out for the window is new::

        window    [ context tokens | pending tokens ]
        text      [ given out ......... | new | U+FFFD: maybe an incomplete character, held back ]

    The context is there because many tokenizers drop the space of a word that comes first. A window
    restarts where its text is complete, so that byte tokens are never torn from their character.

    A decoder that only puts bytes together gives whole characters the same text in any company. Behind
    complete text such a token needs no window: its own text is what is new.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = special_token_ids(tokenizer) if skip_special_tokens else frozenset()
        self._alone = _texts_alone(tokenizer)
        tail = [token for token in prompt_token_ids[-4 * PROMPT_TAIL :] if token not in self._skipped]
        self._window = tail[-PROMPT_TAIL:]
        self._num_context = len(self._window)
        self._given = self._decode(self._window)
        self._only_prompt = True

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        if token_id in self._skipped:
            return ""
        if self._alone is not None and len(self._window) == self._num_context:
            text = self._alone.get(token_id)
            if text is None:
                text = self._alone[token_id] = self._decode([token_id])
            if REPLACEMENT not in text and not self._given.endswith(REPLACEMENT):
                self._window, self._num_context, self._given = [token_id], 1, text
                self._only_prompt = False
                return text
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            new = self._new_part(text)
            self._restart()
            return new
        if len(self._window) - self._num_context > MAX_PENDING:
            return self._give_up(text)
        complete = text.rstrip(REPLACEMENT)
        if not complete.startswith(self._given):
            return ""
        new = complete[len(self._given) :]
        self._given = complete
        self._only_prompt = False
        return new

    def finish(self) -> str:
        """What was held back; an incomplete character at the very end becomes U+FFFD."""
        if len(self._window) == self._num_context:
            return ""
        text = self._decode(self._window)
        new = self._new_part(text)
        self._restart()
        return new

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def _new_part(self, text: str) -> str:
        if text.startswith(self._given):
            return text[len(self._given) :]
        if self._only_prompt:  # the prompt ended inside a character, which is complete now
            complete = self._given.rstrip(REPLACEMENT)
            if text.startswith(complete):
                return text[len(complete) :]
        # A byte-fallback decoder takes back a whole run of bytes when a later byte is invalid.
        return self._decode(self._window[self._num_context :])

    def _restart(self) -> None:
        """Let the pending tokens, whose text is all given out, be the new context."""
        self._window = self._window[self._num_context :]
        self._num_context = len(self._window)
        self._given = self._decode(self._window)
        self._only_prompt = False

    def _give_up(self, text: str) -> str:
        """Give out everything but the last U+FFFD, which alone may still become a character.

        UTF-8 finds its own way back: a few tokens are context enough, wherever they begin.
        """
        new = self._new_part(text)[:-1]
        self._window = self._window[-KEPT:]
        self._num_context = KEPT - 1
        self._given = self._decode(self._window)[:-1]
        self._only_prompt = False
        return new


@lru_cache(maxsize=4)
def special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that ``skip_special_tokens`` leaves out."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


@lru_cache(maxsize=4)
def _texts_alone(tokenizer: Tokenizer) -> dict[int, str] | None:
    """Texts of single tokens, as far as they were asked for; None where a token's text depends on others."""
    return {} if isinstance(tokenizer.decoder, decoders.ByteLevel) else None
