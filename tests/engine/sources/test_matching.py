"""Sources that look for earlier places: against a search written for reading, and where texts end."""

from __future__ import annotations

import random
import time

import pytest

from resispec.engine.sources.match_index import MAX_MATCH, MatchIndex
from resispec.engine.sources.matching import MATCH_PRIORS, kinds
from resispec.engine.sources.ngram import NgramSource
from resispec.engine.sources.prediction import PredictionSource
from resispec.engine.sources.rates import Rates
from resispec.engine.sources.suffix import RecentOutputs, SuffixSource


def longest(text: list[int], context: list[int]) -> int:
    """The longest agreement of ``context`` with what comes before any place in ``text``; at least 2, or 0."""
    best = 0
    for place in range(len(text)):
        length = 0
        while (
            length < min(place, len(context), MAX_MATCH) and text[place - 1 - length] == context[-1 - length]
        ):
            length += 1
        best = max(best, length)
    return best if best >= 2 else 0


def test_matches_are_the_longest_ones() -> None:
    """Few places share a pair here, so that all of them are looked at."""
    rng = random.Random(0)
    for _ in range(200):
        text = [rng.randrange(6) for _ in range(rng.randrange(60))]
        split = rng.randrange(len(text) + 1)
        index = MatchIndex(text[:split])
        index.extend(text[split:])
        context = text[-8:] if rng.random() < 0.7 else [rng.randrange(6) for _ in range(8)]
        matches = index.find(context)
        assert (matches[0].length if matches else 0) == longest(text, context)
        assert [m.length for m in matches] == sorted((m.length for m in matches), reverse=True)
        for match in matches:
            assert (
                text[match.position - match.length : match.position] == context[len(context) - match.length :]
            )


def test_a_search_does_not_grow_with_the_text() -> None:
    """One token over and over is the worst case: every place shares the pair."""
    sizes = (2_000, 64_000)
    seconds = []
    for size in sizes:
        index = MatchIndex([7] * size)
        began = time.perf_counter()
        for _ in range(200):
            index.find([7] * 64)
        seconds.append(time.perf_counter() - began)
    assert seconds[1] < 8 * seconds[0], "32 times the text"


def test_ngram_says_what_followed_and_repeats_a_repetition() -> None:
    source = NgramSource((1, 2, 3, 4, 5, 9, 2, 3))
    (path,) = source.paths([1, 2, 3, 4, 5, 9, 2, 3], 4)
    assert path.tokens == (4, 5, 9, 2)
    assert len(path.chances) == 4
    assert NgramSource((8, 8, 8)).paths([8, 8, 8], 5)[0].tokens == (8,) * 5
    assert NgramSource((1, 2, 3)).paths([1, 2, 3], 4) == ()


def test_ngram_offers_other_continuations_too() -> None:
    text = [5, 1, 2, 3, 0, 1, 2, 4, 0, 0, 5, 1, 2]
    first, second = NgramSource(text).paths(text, 2)
    assert first.tokens[0] == 3, "agrees on three tokens"
    assert second.tokens[0] == 4
    assert second.chances[0] < first.chances[0]


def test_chances_follow_what_came_of_guesses() -> None:
    text = [1, 2, 3] * 4
    source = NgramSource(text)
    before = source.paths(text, 1)[0].chances[0]
    for _ in range(12):
        (path, *_) = source.paths(text, 1)
        start = len(text)
        text.append(path.tokens[0])
        source.committed(text, start)
    assert source.paths(text, 1)[0].chances[0] > before
    rates = Rates((0.5,))
    for _ in range(500):
        rates.add(0, False)
    assert rates[0] < 0.01
    for _ in range(100):
        rates.add(0, True)
    assert rates[0] > 0.6, "old guesses fade"


def test_each_right_token_makes_the_agreement_longer() -> None:
    assert kinds(2, 4, best=True) == (0, 1, 2, 2)
    assert kinds(2, 3, best=False) == (len(MATCH_PRIORS) - 1, 1, 2)
    assert kinds(MAX_MATCH, 2, best=True) == (6, 6)


PREDICTED = tuple(range(100, 140))


def follow(source: PredictionSource, answer: list[int]) -> tuple[int, ...]:
    text = [1]
    for token in answer:
        source.paths(text, 3)
        text.append(token)
        source.committed(text, len(text) - 1)
    paths = source.paths(text, 3)
    return paths[0].tokens if paths else ()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], (100, 101, 102)),
        ([100, 101], (102, 103, 104)),
        ([100, 50, 102, 103], (104, 105, 106)),  # one token exchanged
        ([100, 50, 51, 52, 101, 102], (103, 104, 105)),  # three put in
        ([100, 101, 110, 111], (112, 113, 114)),  # eight left out
        ([*range(100, 139)], (139,)),
        ([*range(100, 140)], ()),
    ],
)
def test_a_prediction_is_found_again(answer: list[int], expected: tuple[int, ...]) -> None:
    assert follow(PredictionSource(PREDICTED), answer) == expected


def test_a_wrong_prediction_loses_credit() -> None:
    source = PredictionSource(PREDICTED)
    text = [1]
    first = source.paths(text, 1)[0].chances[0]
    for token in range(20):
        text.append(token)
        source.committed(text, len(text) - 1)
        source.paths(text, 1)
    assert source.paths(text, 1)[0].chances[0] < first / 2


def test_recent_answers_are_remembered_up_to_a_bound() -> None:
    outputs = RecentOutputs(capacity=50)
    SuffixSource(outputs, 2).finished([9, 9, *range(10)])
    source = SuffixSource(outputs, 1)
    assert source.paths([3, 4], 4)[0].tokens == (5, 6, 7, 8)
    assert source.paths([7, 8], 4)[0].tokens == (9,), "never past the end of an answer"
    assert source.paths([9, 9], 4) == (), "prompts are not kept"
    for start in range(1000, 2000, 20):
        outputs.add(range(start, start + 20))
    assert source.paths([3, 4], 4) == ()
    assert sum(len(index.tokens) for index in outputs.generations) <= 100
    assert source.paths([1985, 1986], 2)[0].tokens == (1987, 1988)
