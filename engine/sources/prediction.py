"""The user's own prediction of the answer, followed as far as it holds and found again after that."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .base import Path
from .match_index import MAX_MATCH, MIN_MATCH, MatchIndex
from .matching import Guesses


class PredictionSource:
    """Points at the place in the predicted text where the answer is."""

    name = "prediction"

    def __init__(self, prediction: SequenceOf[int]) -> None:
        self._index = MatchIndex(prediction)
        self._guesses = Guesses()
        self._place = 0  # of the next token in the predicted text
        self._agreed = MAX_MATCH // 2  # tokens before it that agree; at first the user is taken at their word

    def paths(self, token_ids: SequenceOf[int], max_tokens: int) -> tuple[Path, ...]:
        here = (self._agreed, self._index.following(self._place, max_tokens))
        return self._guesses.say([here], len(token_ids))

    def committed(self, token_ids: SequenceOf[int], start: int) -> None:
        self._guesses.settle(token_ids, start)
        predicted = self._index.tokens
        for position in range(start, len(token_ids)):
            if self._place < len(predicted) and predicted[self._place] == token_ids[position]:
                self._place += 1
                self._agreed = min(self._agreed + 1, MAX_MATCH)
            else:
                self._realign(token_ids[max(0, position + 1 - MAX_MATCH) : position + 1])

    def _realign(self, context: SequenceOf[int]) -> None:
        """After a token that was not predicted: where its surroundings are, ahead rather than behind.

        Failing that, one token is taken to have been exchanged for another.
        """
        matches = self._index.find(context)
        if matches:
            longest = matches[0].length
            best = [match for match in matches if match.length == longest]
            ahead = [match for match in best if match.position >= self._place] or best
            found = min(ahead, key=lambda match: abs(match.position - self._place))
            self._place, self._agreed = found.position, found.length
        else:
            self._place = min(self._place + 1, len(self._index.tokens))
            self._agreed = MIN_MATCH
