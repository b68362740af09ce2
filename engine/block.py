"""What a step gives a request: what was drawn, what its grammar forces behind that, and where it ends."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import msgspec

from .sequence import Sequence
from .stops import Cut, cut_block


class Block(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one step, in order. Those that ``cut`` keeps are committed to the grammar."""

    tokens: tuple[int, ...]  # drawn ones, then forced ones
    num_drawn: int
    cut: Cut

    def num_forced(self, kept: SequenceOf[int]) -> int:
        """How many of the tokens that are kept, from the front, were forced."""
        return max(0, len(kept) - self.num_drawn)


def end_block(
    sequence: Sequence, drawn: tuple[int, ...], eos_token_ids: Collection[int], room: int, max_forced: int
) -> Block:
    """Cut a block at whatever ends the request, and let its grammar run ahead if nothing does.

    A forced token is the only one of the target's law, whatever the logits, so it is taken at once: the
    next step runs it beside the others, and neither masks, tests nor draws anything for it.

    Args:
        sequence: the request's record; its constraint is moved on.
        drawn: the tokens that verification gave.
        eos_token_ids: ids that end an answer of this model.
        room: tokens the context can still take.
        max_forced: tokens a grammar may run ahead by.
    """
    sampling, before = sequence.request.sampling, sequence.num_output
    cut = cut_block(drawn, sampling, eos_token_ids, before, room)
    constraint = sequence.constraint
    if constraint is None:
        return Block(drawn, len(drawn), cut)
    cut = cut.complete(constraint.commit(drawn[: cut.num_tokens]))
    forced = constraint.forced(max_forced) if sequence.runs_ahead and cut.finish_reason is None else ()
    if not forced:
        return Block(drawn, len(drawn), cut)
    tokens = drawn + forced
    cut = cut_block(tokens, sampling, eos_token_ids, before, room)
    end = constraint.commit(tokens[len(drawn) : cut.num_tokens])
    return Block(tokens, len(drawn), cut if end is None else cut.complete(len(drawn) + end))
