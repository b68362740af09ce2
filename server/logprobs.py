"""From the engine's log-probabilities to the shapes that clients expect."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resispec.engine.outputs import TokenLogprobs

from .schemas.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from .token_strings import TokenStrings

IMPOSSIBLE = -9999.0  # JSON has no infinity; what OpenAI and vLLM write


class LogprobFormat:
    """Writes log-probabilities for one answer.

    top: alternatives to show; the engine may have measured more. as_ids: print tokens as ``token_id:7``.
    """

    def __init__(self, strings: TokenStrings, top: int, *, as_ids: bool = False) -> None:
        self._strings = strings
        self._top = top
        self._as_ids = as_ids

    def chat(self, scores: Sequence[TokenLogprobs]) -> ChatLogprobs:
        return ChatLogprobs(
            content=[
                ContentLogprob(
                    token=self._name(score.token_id),
                    logprob=_finite(score.logprob),
                    bytes=list(self._strings.data(score.token_id)),
                    top_logprobs=[self._entry(token, value) for token, value in score.top[: self._top]],
                )
                for score in scores
            ]
        )

    def completion(
        self, first: int | None, scores: Sequence[TokenLogprobs], offsets: Sequence[int]
    ) -> CompletionLogprobs:
        """first: a prompt's first token, which nothing comes before. offsets: of every token, ``first`` too.

        An entry's alternatives include the token itself, so there is one more where it is not among them.
        """
        unscored = [] if first is None else [first]
        return CompletionLogprobs(
            text_offset=list(offsets),
            token_logprobs=[*[None for _ in unscored], *(_finite(score.logprob) for score in scores)],
            tokens=[self._name(token) for token in [*unscored, *(score.token_id for score in scores)]],
            top_logprobs=[*[None for _ in unscored], *(self._alternatives(score) for score in scores)],
        )

    def prompt(self, scores: Sequence[TokenLogprobs]) -> PromptLogprobs:
        return [None, *(self._ranked(score) for score in scores)]

    def _alternatives(self, score: TokenLogprobs) -> dict[str, float]:
        entries = [*score.top[: self._top], (score.token_id, score.logprob)]
        return {self._name(token): _finite(value) for token, value in entries}

    def _ranked(self, score: TokenLogprobs) -> dict[int, PromptLogprob]:
        ranks = [(token, value, rank) for rank, (token, value) in enumerate(score.top[: self._top], start=1)]
        return {
            token: PromptLogprob(logprob=_finite(value), rank=rank, decoded_token=self._name(token))
            for token, value, rank in [*ranks, (score.token_id, score.logprob, score.rank)]
        }

    def _entry(self, token_id: int, logprob: float) -> TopLogprob:
        data = self._strings.data(token_id)
        return TopLogprob(token=self._name(token_id), logprob=_finite(logprob), bytes=list(data))

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._strings.text(token_id)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
