"""Answers of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence

from resispec.engine.outputs import FinishReason, RequestOutput

from ..generation import Collected
from ..schemas.chat import AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, Delta
from ..schemas.logprobs import ChatLogprobs, PromptLogprobs
from ..schemas.usage import MetricsBody, UsageBody
from ..tools.reader import AnswerForm, AnswerReader, whole_calls
from .base import EnvelopeFields, Shown, StepCounter, TextChunk


class ChatWriter:
    """``chat.completion`` bodies; a choice's first chunk carries the role."""

    def __init__(
        self, envelope: EnvelopeFields, prompt: tuple[int, ...], shown: Shown, form: AnswerForm
    ) -> None:
        self._envelope = envelope
        self._form = form
        self._readers: dict[int, AnswerReader] = {}
        self._prompt = list(prompt) if shown.token_ids else None
        self._shown = shown
        self._started: set[int] = set()
        self._text_chunks: dict[int, TextChunk] = {}
        self._steps = StepCounter()

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> ChatCompletion:
        return ChatCompletion(
            **self._envelope,
            choices=[
                ChatChoice(
                    index=index,
                    message=self._message(index, choice),
                    logprobs=self._logprobs(choice),
                    finish_reason=self._finish_reason(index, choice.finish_reason),
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

    def chunks(self, index: int, output: RequestOutput, usage: UsageBody | None = None) -> list[str]:
        chunks = []
        # Not before the first token exists: clients take this chunk for the time to first token.
        if index not in self._started:
            first = ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
            chunk = ChatChunk(**self._envelope, choices=[first], usage=usage)
            if not self._started:
                chunk.prompt_token_ids = self._prompt
                chunk.prompt_logprobs = self._prompt_logprobs(output)
            chunks.append(chunk.model_dump_json())
            self._started.add(index)
        token_ids = list(output.token_ids) if self._shown.token_ids and output.token_ids else None
        logprobs = self._logprobs(output)
        trace = self._steps.chunk(index, output)
        read = self._reader(index).feed(output.text, last=output.finish_reason is not None)
        more = token_ids or logprobs or trace or read.reasoning or read.calls or output.finish_reason or usage
        if read.content and not more:
            return [*chunks, self._text_chunk(index).with_text(read.content)]
        shown = read.content or read.reasoning or read.calls
        news = shown or token_ids or logprobs or (self._shown.every_token and output.token_ids)
        if news or trace or output.finish_reason is not None:
            choice = ChatChunkChoice(
                index=index,
                delta=Delta(
                    content=read.content or None,
                    reasoning_content=read.reasoning or None,
                    tool_calls=read.calls or None,
                ),
                logprobs=logprobs,
                finish_reason=self._finish_reason(index, output.finish_reason),
                stop_reason=output.stop_reason,
                token_ids=token_ids,
                trace=trace,
            )
            chunks.append(ChatChunk(**self._envelope, choices=[choice], usage=usage).model_dump_json())
        return chunks

    def _text_chunk(self, index: int) -> TextChunk:
        if index not in self._text_chunks:
            choice = ChatChunkChoice(index=index, delta=Delta(content=TextChunk.MARK))
            self._text_chunks[index] = TextChunk(ChatChunk(**self._envelope, choices=[choice]))
        return self._text_chunks[index]

    def _reader(self, index: int) -> AnswerReader:
        if index not in self._readers:
            self._readers[index] = self._form.reader()
        return self._readers[index]

    def _message(self, index: int, choice: Collected) -> AssistantMessage:
        read = self._reader(index).feed(choice.text, last=True)
        return AssistantMessage(
            content=None if read.calls and not read.content else read.content,
            reasoning_content=read.reasoning or None,
            tool_calls=whole_calls(read.calls) or None,
        )

    def _finish_reason(self, index: int, reason: FinishReason | None) -> str | None:
        called = reason is FinishReason.STOP and self._reader(index).has_called
        return "tool_calls" if called else reason

    def _logprobs(self, news: Collected | RequestOutput) -> ChatLogprobs | None:
        return self._shown.logprobs.chat(news.logprobs) if self._shown.logprobs and news.logprobs else None

    def _prompt_logprobs(self, news: Collected | RequestOutput) -> PromptLogprobs | None:
        return (
            self._shown.prompt_logprobs.prompt(news.prompt_logprobs) if self._shown.prompt_logprobs else None
        )

    def usage_chunk(self, usage: UsageBody, metrics: MetricsBody | None) -> ChatChunk:
        return ChatChunk(**self._envelope, choices=[], usage=usage, metrics=metrics)
