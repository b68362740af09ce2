"""What followed the last tokens in recent answers to other requests of the same owner."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .base import Path
from .match_index import Match, MatchIndex
from .matching import Guesses

_CAPACITY = 1 << 15  # tokens of one generation
_END = -1  # between two answers


class RecentOutputs:
    """Recent answers of one owner, in bounded memory: a full generation replaces the one before."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self.generations = (MatchIndex(), MatchIndex())  # the newer first

    def add(self, output: SequenceOf[int]) -> None:
        if len(self.generations[0].tokens) + len(output) >= self._capacity:
            self.generations = (MatchIndex(), self.generations[0])
        self.generations[0].extend([*output[-self._capacity :], _END])


class SuffixSource:
    """The longest agreement with recent answers."""

    name = "suffix"

    def __init__(self, outputs: RecentOutputs, num_prompt: int) -> None:
        self._outputs = outputs
        self._num_prompt = num_prompt
        self._guesses = Guesses()

    def paths(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[Path, ...]:
        found = [(match, index) for index in self._outputs.generations for match in index.find(token_ids)]
        found.sort(key=lambda pair: -pair[0].length)  # stable: the newer first
        candidates = ((match.length, _until_end(match, index, max_tokens)) for match, index in found)
        return self._guesses.say(candidates, len(token_ids))

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        self._guesses.settle(token_ids, start)

    def finished(self, token_ids: SequenceOf[int]) -> None:
        self._outputs.add(token_ids[self._num_prompt :])


def _until_end(match: Match, index: MatchIndex, count: int) -> tuple[int, ...]:
    tokens = index.following(match.position, count)
    return tokens[: tokens.index(_END)] if _END in tokens else tokens
