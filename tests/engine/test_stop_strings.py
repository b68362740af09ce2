"""Stop strings are found where they end first, however the text is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec.engine.stop_strings import StopMatch, StopStringMatcher

TEXT = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def first_stop(text: str, stops: list[str]) -> StopMatch | None:
    """The definition: the first end, then the first start."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return StopMatch(longest, end - len(longest), end)
    return None


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 14), max_size=4))
def test_the_match_is_the_definition_whatever_the_pieces(text, stops, cuts):
    matcher = StopStringMatcher(stops)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    found = None
    for start, end in pairwise(edges):
        found = matcher.feed(text[start:end])
        if found:
            break
    assert found == first_stop(text, stops)


@given(text=TEXT, stops=STOPS)
def test_exactly_the_longest_beginning_of_a_stop_is_undecided(text, stops):
    matcher = StopStringMatcher(stops)
    if matcher.feed(text) is None:
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        assert matcher.undecided == max(len(start) for start in beginnings if text.endswith(start))


def test_a_failed_beginning_may_hold_another_one():
    assert StopStringMatcher(["aabaaac"]).feed("aabaaabaaac") == StopMatch("aabaaac", 4, 11)


def test_an_unarmed_match_is_passed_over_but_its_beginning_is_remembered():
    matcher = StopStringMatcher(["aba"])
    assert matcher.feed("aba", armed=False) is None
    assert matcher.feed("b") is None
    assert matcher.feed("a") == StopMatch("aba", 2, 5)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStringMatcher(["x", ""])
