"""A block ends at whatever comes first in it, and nothing behind that is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec.engine.outputs import FinishReason
from resispec.engine.request import SamplingParams
from resispec.engine.stops import Cut, cut_block

EOS = frozenset({2, 3})
FAR = 1000


def cut(token_ids: list[int], before: int = 0, room: int = FAR, **sampling: Any) -> Cut:
    return cut_block(token_ids, SamplingParams(**sampling), EOS, before, room)


def test_a_block_without_a_stop_is_kept_whole():
    assert cut([10, 11, 12]) == Cut(3, 3)


def test_an_empty_block_ends_nothing():
    assert cut([]) == Cut(0, 0)


@pytest.mark.parametrize("eos", sorted(EOS))
def test_eos_inside_a_block_is_counted_but_not_shown(eos):
    assert cut([10, eos, 11]) == Cut(2, 1, FinishReason.STOP, None)


def test_the_first_of_two_stops_wins():
    assert cut([10, 20, 2], stop_token_ids=(20,)) == Cut(2, 1, FinishReason.STOP, 20)
    assert cut([10, 2, 20], stop_token_ids=(20,)) == Cut(2, 1, FinishReason.STOP, None)


def test_a_stop_id_is_shown_on_request():
    assert cut([10, 20], stop_token_ids=(20,), include_stop_str_in_output=True) == Cut(
        2, 2, FinishReason.STOP, 20
    )


def test_ignored_eos_is_an_ordinary_token():
    assert cut([10, 2, 11], ignore_eos=True) == Cut(3, 3)


def test_an_ignored_eos_may_still_be_a_stop_id():
    assert cut([10, 2, 11], ignore_eos=True, stop_token_ids=(2,)) == Cut(2, 1, FinishReason.STOP, 2)
    assert cut([10, 2, 11], stop_token_ids=(2,)) == Cut(2, 1, FinishReason.STOP, None)


@pytest.mark.parametrize(("before", "kept"), [(0, 4), (1, 3), (3, 1), (4, 0), (9, 0)])
def test_max_tokens_counts_from_the_first_output_token(before, kept):
    assert cut([10, 11, 12, 13, 14], before, max_tokens=4) == Cut(kept, kept, FinishReason.LENGTH)


def test_the_end_of_the_context_is_a_length():
    assert cut([10, 11, 12], room=2) == Cut(2, 2, FinishReason.LENGTH)
    assert cut([10, 11], room=2) == Cut(2, 2, FinishReason.LENGTH)
    assert cut([10], room=2) == Cut(1, 1)


def test_eos_on_the_last_allowed_token_is_a_stop():
    assert cut([10, 2, 11], max_tokens=2) == Cut(2, 1, FinishReason.STOP, None)
    assert cut([10, 2, 11], room=2) == Cut(2, 1, FinishReason.STOP, None)


def test_eos_behind_the_limit_does_not_hide_it():
    assert cut([10, 11, 2], max_tokens=2) == Cut(2, 2, FinishReason.LENGTH)


@pytest.mark.parametrize(("min_tokens", "kept"), [(0, 1), (1, 3), (2, 3), (3, 5)])
def test_a_stop_ends_the_answer_only_after_min_tokens_others(min_tokens, kept):
    """The tokens at 0, 2 and 4 are stops; the one at i has i others before it."""
    assert cut([2, 10, 20, 11, 2], min_tokens=min_tokens, stop_token_ids=(20,)).num_tokens == kept


def test_min_tokens_counts_earlier_blocks():
    assert cut([2, 10], before=4, min_tokens=5) == Cut(2, 2)
    assert cut([2, 10], before=5, min_tokens=5) == Cut(1, 0, FinishReason.STOP, None)


@given(
    token_ids=st.lists(st.integers(0, 6), max_size=12),
    size=st.integers(1, 5),
    max_tokens=st.none() | st.integers(1, 12),
    min_tokens=st.integers(0, 6),
    room=st.integers(1, 12),
    ignore_eos=st.booleans(),
)
def test_how_tokens_are_split_into_blocks_does_not_matter(
    token_ids, size, max_tokens, min_tokens, room, ignore_eos
):
    sampling = SamplingParams(
        max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=ignore_eos, stop_token_ids=(5,)
    )

    def answer(size: int) -> tuple[list[int], FinishReason | None, int | None]:
        out: list[int] = []
        for start in range(0, len(token_ids), size):
            block = token_ids[start : start + size]
            result = cut_block(block, sampling, EOS, len(out), room - len(out))
            out += block[: result.num_tokens]
            if result.finish_reason is not None:
                return out, result.finish_reason, result.stop_reason
        return out, None, None

    assert answer(size) == answer(1)
