"""How outputs become the bodies of an answer: what each endpoint does its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict

from resispec.engine.outputs import RequestOutput

from .generation import Collected
from .schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Delta,
)
from .schemas.completions import Completion, CompletionChoice
from .schemas.usage import MetricsBody, UsageBody


class EnvelopeFields(TypedDict):
    """What every body of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Writer(Protocol):
    """Writes one answer: a whole, or chunks and a last one for the usage."""

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> Completion | ChatCompletion: ...

    def chunks(self, index: int, output: RequestOutput) -> list[Completion] | list[ChatChunk]:
        """The chunks for news of choice ``index``; none when there is nothing to show yet."""
        ...

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> Completion | ChatChunk: ...


class CompletionWriter:
    """``text_completion`` bodies.

    prompts: one per choice. echo: the texts to put before the answers, one per choice; None: no echo.
    """

    def __init__(
        self,
        envelope: EnvelopeFields,
        prompts: Sequence[tuple[int, ...]],
        echo: Sequence[str] | None,
        return_token_ids: bool,
    ) -> None:
        self._envelope = envelope
        self._prompts = prompts
        self._echo = echo
        self._return_token_ids = return_token_ids
        self._started: set[int] = set()

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> Completion:
        return Completion(
            **self._envelope,
            choices=[self._choice(index, choice, first=True) for index, choice in enumerate(choices)],
            usage=usage,
            metrics=metrics,
        )

    def chunks(self, index: int, output: RequestOutput) -> list[Completion]:
        choice = self._choice(index, output, first=index not in self._started)
        if not (choice.text or choice.finish_reason or choice.token_ids):
            return []
        self._started.add(index)
        return [Completion(**self._envelope, choices=[choice])]

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> Completion:
        return Completion(**self._envelope, choices=[], usage=usage, metrics=metrics)

    def _choice(self, index: int, news: Collected | RequestOutput, *, first: bool) -> CompletionChoice:
        prefix = self._echo[index] if first and self._echo is not None else ""
        return CompletionChoice(
            index=index,
            text=prefix + news.text,
            finish_reason=news.finish_reason,
            stop_reason=news.stop_reason,
            token_ids=list(news.token_ids) if self._return_token_ids else None,
            prompt_token_ids=list(self._prompts[index]) if first and self._return_token_ids else None,
        )


class ChatWriter:
    """``chat.completion`` bodies; a choice's first chunk carries the role."""

    def __init__(self, envelope: EnvelopeFields, prompt: tuple[int, ...], return_token_ids: bool) -> None:
        self._envelope = envelope
        self._prompt = list(prompt) if return_token_ids else None
        self._return_token_ids = return_token_ids
        self._started: set[int] = set()

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> ChatCompletion:
        return ChatCompletion(
            **self._envelope,
            choices=[
                ChatChoice(
                    index=index,
                    message=AssistantMessage(content=choice.text),
                    finish_reason=choice.finish_reason,
                    stop_reason=choice.stop_reason,
                    token_ids=choice.token_ids if self._return_token_ids else None,
                )
                for index, choice in enumerate(choices)
            ],
            usage=usage,
            metrics=metrics,
            prompt_token_ids=self._prompt,
        )

    def chunks(self, index: int, output: RequestOutput) -> list[ChatChunk]:
        chunks = []
        # Not before the first token exists: clients take this chunk for the time to first token.
        if index not in self._started:
            first = ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
            prompt = self._prompt if not self._started else None
            chunks.append(ChatChunk(**self._envelope, choices=[first], prompt_token_ids=prompt))
            self._started.add(index)
        token_ids = list(output.token_ids) if self._return_token_ids and output.token_ids else None
        if output.text or token_ids or output.finish_reason is not None:
            news = ChatChunkChoice(
                index=index,
                delta=Delta(content=output.text or None),
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
                token_ids=token_ids,
            )
            chunks.append(ChatChunk(**self._envelope, choices=[news]))
        return chunks

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> ChatChunk:
        return ChatChunk(**self._envelope, choices=[], usage=usage, metrics=metrics)
