"""Cuts one choice's outputs so that tokens, what belongs to them, and their text go together."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from resispec.engine.outputs import RequestOutput


class Portions:
    """Holds tokens back until their text is released, and hands out so many at a time.

    The engine gives out tokens at once but holds text back that may still become a stop string or is
    half a character; and a speculative step gives several tokens at once. All portions together are
    what came in; each one's usage counts the tokens handed out so far.
    """

    def __init__(self, interval: int | None = None) -> None:
        """interval: tokens in every portion but the last; None: all there are."""
        self._interval = interval
        self._held: RequestOutput | None = None  # what has come in and not gone out, as one output
        self._given = 0  # characters handed out
        self._delivered = 0  # tokens handed out

    def split(self, output: RequestOutput) -> Iterator[RequestOutput]:
        """The portions that ``output`` completes, in order; the last output releases all the rest."""
        held = output if self._held is None else _join(self._held, output)
        count = len(held.token_ids)
        if output.finish_reason is None:
            released = self._given + len(held.text)
            count = sum(end <= released for end in held.text_ends)
        size = self._interval or max(1, count)
        while count > size or (count == size and output.finish_reason is None):
            portion, held = self._cut(held, size)
            count -= size
            yield portion
        if output.finish_reason is not None:
            self._delivered += len(held.token_ids)
            yield self._counted(held)
            return
        self._held = held

    def _cut(self, held: RequestOutput, size: int) -> tuple[RequestOutput, RequestOutput]:
        length = max(0, held.text_ends[size - 1] - self._given)
        self._given += len(held.text[:length])
        self._delivered += size
        first = msgspec.structs.replace(
            held,
            text=held.text[:length],
            token_ids=held.token_ids[:size],
            text_ends=held.text_ends[:size],
            logprobs=held.logprobs[:size],
            finish_reason=None,
            stop_reason=None,
            metrics=None,
        )
        rest = msgspec.structs.replace(
            held,
            text=held.text[length:],
            token_ids=held.token_ids[size:],
            text_ends=held.text_ends[size:],
            logprobs=held.logprobs[size:],
            prompt_logprobs=(),
            trace=(),
        )
        return self._counted(first), rest

    def _counted(self, portion: RequestOutput) -> RequestOutput:
        return msgspec.structs.replace(
            portion, usage=msgspec.structs.replace(portion.usage, completion_tokens=self._delivered)
        )


def _join(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        text_ends=first.text_ends + second.text_ends,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
        trace=first.trace + second.trace,
    )
