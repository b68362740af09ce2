"""Where a block of accepted tokens ends its request.

A speculative step accepts several tokens at once, and the token that ends the answer may be any of
them. Everything behind it must go before anything is committed or counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from .outputs import FinishReason
from .request import SamplingParams


class Cut(msgspec.Struct, frozen=True, gc=False):
    """What remains of a block, and why it ends there."""

    num_tokens: int  # kept and counted, from the front of the block
    num_text_tokens: int  # of these, how many the reader sees: an EOS or stop id is counted, not shown
    finish_reason: FinishReason | None = None  # None: the request goes on
    stop_reason: int | None = None  # the stop id; None for EOS, a completed grammar and a length

    def complete(self, num_tokens: int | None) -> Cut:
        """Cut also where a grammar is complete: behind ``num_tokens`` of what is kept; None: nowhere.

        It wins over a limit on the same token, and an EOS or stop id there over it.
        """
        if num_tokens is None or (num_tokens == self.num_tokens and self.finish_reason is FinishReason.STOP):
            return self
        return Cut(num_tokens, num_tokens, FinishReason.STOP)


def cut_block(
    token_ids: Sequence[int],
    sampling: SamplingParams,
    eos_token_ids: Collection[int],
    num_output_tokens: int,
    room: int,
) -> Cut:
    """Cut a block at whatever comes first: EOS, a stop id, ``max_tokens`` or the end of the context.

    A stop that falls on the last token a limit allows wins over the limit. An id that is both an EOS
    and a stop id counts as an EOS, unless EOS is ignored.

    Args:
        token_ids: the block, in order; none of it counted yet.
        sampling: the request's own.
        eos_token_ids: ids that end an answer of this model.
        num_output_tokens: output tokens before the block.
        room: tokens the context can still take, the block included.
    """
    limit = room
    if sampling.max_tokens is not None:
        limit = min(limit, sampling.max_tokens - num_output_tokens)
    limit = max(limit, 0)

    # The law of a token has no stop in it while fewer than `min_tokens` tokens precede it.
    first = max(0, sampling.min_tokens - num_output_tokens)
    for index in range(first, min(len(token_ids), limit)):
        token_id = token_ids[index]
        is_eos = not sampling.ignore_eos and token_id in eos_token_ids
        if is_eos or token_id in sampling.stop_token_ids:
            shown = index + 1 if sampling.include_stop_str_in_output else index
            return Cut(index + 1, shown, FinishReason.STOP, None if is_eos else token_id)

    if len(token_ids) >= limit:
        return Cut(limit, limit, FinishReason.LENGTH)
    return Cut(len(token_ids), len(token_ids))
