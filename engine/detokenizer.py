"""Text for the reader, token by token, cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tokenizers import Tokenizer

from .request import SamplingParams
from .stop_strings import StopStringMatcher
from .text_decoder import TextDecoder


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What pushing a block of tokens released."""

    text: str
    num_tokens: int  # of the block, kept; the last of them completed the stop string, if there is one
    ends: tuple[int, ...] = ()  # of each kept token: characters of the answer decoded with it
    stop: str | None = None  # the stop string that ended the answer


class IncrementalDetokenizer:
    """Turns one request's output tokens into text that never has to be taken back.

    Text is held back while it may still become a stop string or is an incomplete character. All pieces
    together, with the text of `finish`, are the whole answer. A stop string that is completed before
    ``min_tokens`` tokens are there does not end the answer.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> None:
        self._decoder = TextDecoder(tokenizer, prompt_token_ids, sampling.skip_special_tokens)
        self._matcher = StopStringMatcher(sampling.stop) if sampling.stop else None
        self._include_stop = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._num_tokens = 0
        self._num_decoded = 0  # characters
        self._released = 0  # characters
        self._held = ""  # decoded, but it may be the beginning of a stop string
        self._stopped = False

    @property
    def num_characters(self) -> int:
        """Length of the answer so far, text that is held back included."""
        return self._num_decoded

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Take the next accepted tokens, in order.

        Raises ValueError after a stop string: nothing comes after it.
        """
        if self._stopped:
            raise ValueError("this answer was ended by a stop string")
        pieces: list[str] = []
        ends: list[int] = []
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            text = self._decoder.push(token_id)
            self._num_decoded += len(text)
            ends.append(self._num_decoded)
            if self._matcher is None:
                pieces.append(text)
                continue
            match = self._matcher.feed(text, armed=self._num_tokens >= self._min_tokens)
            self._held += text
            if match is not None:
                self._stopped = True
                self._num_decoded = match.end if self._include_stop else match.start
                pieces.append(self._held[: self._num_decoded - self._released])
                self._held = ""
                shown = tuple(min(end, self._num_decoded) for end in ends)
                return Piece("".join(pieces), index + 1, shown, match.stop)
            pieces.append(self._release(len(self._held) - self._matcher.undecided))
        return Piece("".join(pieces), len(token_ids), tuple(ends))

    def finish(self) -> str:
        """The text still held back when the answer ends for another reason. Empty after a stop string."""
        if self._stopped:
            return ""
        rest = self._decoder.finish()
        self._num_decoded += len(rest)
        text = self._held + rest
        self._held = ""
        return text

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._released += length
        return text
