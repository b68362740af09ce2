"""Answers of ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resispec.engine.outputs import RequestOutput

from ..generation import Collected
from ..schemas.completions import Completion, CompletionChoice
from ..schemas.logprobs import CompletionLogprobs
from ..schemas.usage import MetricsBody, UsageBody
from .base import EnvelopeFields, Shown, StepCounter, TextChunk


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt to be put before its answer."""

    text: str
    offsets: tuple[int, ...] = ()  # where its tokens begin; none unless log-probabilities are shown


class CompletionWriter:
    """``text_completion`` bodies.

    prompts: one per choice. echo: what to put before the answers, one per choice; None: no echo.
    """

    def __init__(
        self,
        envelope: EnvelopeFields,
        prompts: Sequence[tuple[int, ...]],
        echo: Sequence[Echo] | None,
        shown: Shown,
    ) -> None:
        self._envelope = envelope
        self._prompts = prompts
        self._echo = echo
        self._shown = shown
        self._written: dict[int, int] = {}  # of choices that have begun: characters of the answer
        self._text_chunks: dict[int, TextChunk] = {}
        self._steps = StepCounter()

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> Completion:
        return Completion(
            **self._envelope,
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=usage,
            metrics=metrics,
        )

    def chunks(self, index: int, output: RequestOutput, usage: UsageBody | None = None) -> list[str]:
        shown = self._shown
        if usage is None and index in self._written and self._is_text(output):
            self._written[index] += len(output.text)
            return [self._text_chunk(index).with_text(output.text)]
        news = output.token_ids if shown.every_token or shown.token_ids or shown.logprobs else output.text
        trace = self._steps.chunk(index, output)
        if not (news or trace or output.prompt_logprobs or output.finish_reason):
            return []
        choice = self._choice(index, output)
        choice.trace = trace
        return [Completion(**self._envelope, choices=[choice], usage=usage).model_dump_json()]

    def _is_text(self, output: RequestOutput) -> bool:
        """Whether there is a text and nothing else to show."""
        shown = self._shown
        more = shown.token_ids or shown.logprobs or output.trace or output.finish_reason
        return bool(output.text) and not more

    def _text_chunk(self, index: int) -> TextChunk:
        if index not in self._text_chunks:
            choice = CompletionChoice(index=index, text=TextChunk.MARK)
            self._text_chunks[index] = TextChunk(Completion(**self._envelope, choices=[choice]))
        return self._text_chunks[index]

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> Completion:
        return Completion(**self._envelope, choices=[], usage=usage, metrics=metrics)

    def _choice(self, index: int, news: Collected | RequestOutput) -> CompletionChoice:
        is_first = index not in self._written
        echo = self._echo[index] if is_first and self._echo is not None else None
        shown = self._shown
        logprobs = self._logprobs(index, news, echo)
        self._written[index] = self._written.get(index, 0) + len(news.text)
        return CompletionChoice(
            index=index,
            text=echo.text + news.text if echo else news.text,
            logprobs=logprobs,
            finish_reason=news.finish_reason,
            stop_reason=news.stop_reason,
            token_ids=list(news.token_ids) if shown.token_ids else None,
            prompt_token_ids=list(self._prompts[index]) if is_first and shown.token_ids else None,
            prompt_logprobs=shown.prompt_logprobs.prompt(news.prompt_logprobs)
            if is_first and shown.prompt_logprobs
            else None,
        )

    def _logprobs(
        self, index: int, news: Collected | RequestOutput, echo: Echo | None
    ) -> CompletionLogprobs | None:
        """Of the tokens in ``news``, and with ``echo`` those of the prompt before them."""
        if self._shown.logprobs is None:
            return None
        before = len(self._echo[index].text) if self._echo is not None else 0
        start = self._written.get(index, 0)
        # A stop string may have cut the text in front of a token's own.
        ends = [min(end, start + len(news.text)) for end in news.text_ends]
        offsets = [before + place for place in [start, *ends][: len(ends)]]
        first, scores = None, list(news.logprobs)
        prompt = self._prompts[index]
        if echo is not None and len(news.prompt_logprobs) == len(prompt) - 1:  # else it ended before them
            first, scores = prompt[0], [*news.prompt_logprobs, *scores]
            offsets = [*echo.offsets, *offsets]
        return self._shown.logprobs.completion(first, scores, offsets) if offsets else None
