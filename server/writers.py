"""How outputs become the bodies of an answer: what each endpoint does its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from resispec.engine.outputs import RequestOutput

from .generation import Collected
from .logprobs import LogprobFormat
from .schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Delta,
)
from .schemas.common import GenerationBody
from .schemas.completions import Completion, CompletionChoice
from .schemas.logprobs import ChatLogprobs, CompletionLogprobs, PromptLogprobs
from .schemas.speculation import ChunkStep, ChunkToken
from .schemas.usage import MetricsBody, UsageBody
from .token_strings import TokenStrings


class EnvelopeFields(TypedDict):
    """What every body of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class StepCounter:
    """Numbers the steps of every choice, for the chunks of a stream."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def chunk(self, index: int, output: RequestOutput) -> list[ChunkStep] | None:
        """None for an output without a trace."""
        if not output.trace:
            return None
        first = self._steps.get(index, 0)
        self._steps[index] = first + len(output.trace)
        return [
            ChunkStep(
                step=number,
                tokens=[ChunkToken(id=one.token_id, text=one.text, origin=one.origin) for one in step.tokens],
            )
            for number, step in enumerate(output.trace, start=first)
        ]


class Writer(Protocol):
    """Writes one answer: a whole, or chunks and a last one for the usage."""

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> Completion | ChatCompletion: ...

    def chunks(self, index: int, output: RequestOutput) -> list[Completion] | list[ChatChunk]:
        """The chunks for news of choice ``index``; none when there is nothing to show yet."""
        ...

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> Completion | ChatChunk: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer shows besides its text."""

    token_ids: bool = False
    every_token: bool = False  # a chunk for tokens without text, too
    logprobs: LogprobFormat | None = None
    prompt_logprobs: LogprobFormat | None = None

    @classmethod
    def of(cls, body: GenerationBody, strings: TokenStrings) -> Shown:
        """What ``body`` asks for."""

        def form(top: int | None) -> LogprobFormat | None:
            as_ids = bool(body.return_tokens_as_token_ids)
            return None if top is None else LogprobFormat(strings, top, as_ids=as_ids)

        return cls(
            token_ids=bool(body.return_token_ids),
            every_token=body.stream_interval is not None,
            logprobs=form(body.answer_logprobs),
            prompt_logprobs=form(body.prompt_logprobs),
        )


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

    def chunks(self, index: int, output: RequestOutput) -> list[Completion]:
        shown = self._shown
        news = output.token_ids if shown.every_token or shown.token_ids or shown.logprobs else output.text
        trace = self._steps.chunk(index, output)
        if not news and not trace and output.finish_reason is None:
            return []
        choice = self._choice(index, output)
        choice.trace = trace
        return [Completion(**self._envelope, choices=[choice])]

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


class ChatWriter:
    """``chat.completion`` bodies; a choice's first chunk carries the role."""

    def __init__(self, envelope: EnvelopeFields, prompt: tuple[int, ...], shown: Shown) -> None:
        self._envelope = envelope
        self._prompt = list(prompt) if shown.token_ids else None
        self._shown = shown
        self._started: set[int] = set()
        self._steps = StepCounter()

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> ChatCompletion:
        return ChatCompletion(
            **self._envelope,
            choices=[
                ChatChoice(
                    index=index,
                    message=AssistantMessage(content=choice.text),
                    logprobs=self._logprobs(choice),
                    finish_reason=choice.finish_reason,
                    stop_reason=choice.stop_reason,
                    token_ids=choice.token_ids if self._shown.token_ids else None,
                )
                for index, choice in enumerate(choices)
            ],
            usage=usage,
            metrics=metrics,
            prompt_token_ids=self._prompt,
            prompt_logprobs=self._prompt_logprobs(choices[0]),
        )

    def chunks(self, index: int, output: RequestOutput) -> list[ChatChunk]:
        chunks = []
        # Not before the first token exists: clients take this chunk for the time to first token.
        if index not in self._started:
            first = ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
            chunk = ChatChunk(**self._envelope, choices=[first])
            if not self._started:
                chunk.prompt_token_ids = self._prompt
                chunk.prompt_logprobs = self._prompt_logprobs(output)
            chunks.append(chunk)
            self._started.add(index)
        token_ids = list(output.token_ids) if self._shown.token_ids and output.token_ids else None
        logprobs = self._logprobs(output)
        news = output.text or token_ids or logprobs or (self._shown.every_token and output.token_ids)
        trace = self._steps.chunk(index, output)
        if news or trace or output.finish_reason is not None:
            choice = ChatChunkChoice(
                index=index,
                delta=Delta(content=output.text or None),
                logprobs=logprobs,
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
                token_ids=token_ids,
                trace=trace,
            )
            chunks.append(ChatChunk(**self._envelope, choices=[choice]))
        return chunks

    def _logprobs(self, news: Collected | RequestOutput) -> ChatLogprobs | None:
        return self._shown.logprobs.chat(news.logprobs) if self._shown.logprobs and news.logprobs else None

    def _prompt_logprobs(self, news: Collected | RequestOutput) -> PromptLogprobs | None:
        return (
            self._shown.prompt_logprobs.prompt(news.prompt_logprobs) if self._shown.prompt_logprobs else None
        )

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> ChatChunk:
        return ChatChunk(**self._envelope, choices=[], usage=usage, metrics=metrics)
