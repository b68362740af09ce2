"""What all writers share: the contract, the envelope, and what an answer shows besides its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from pydantic import BaseModel
from pydantic_core import to_json

from resispec.engine.outputs import RequestOutput

from ..generation import Collected
from ..logprobs import LogprobFormat
from ..schemas.chat import ChatChunk, ChatCompletion
from ..schemas.common import GenerationBody
from ..schemas.completions import Completion
from ..schemas.speculation import ChunkStep, ChunkToken
from ..schemas.usage import MetricsBody, UsageBody
from ..token_strings import TokenStrings


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


class TextChunk:
    """Writes chunks that differ in a text only, as their model would: most of a stream are such."""

    MARK = "\0"  # what a chunk is given that is written once

    def __init__(self, marked: BaseModel) -> None:
        """marked: a chunk whose text is `MARK`."""
        self._before, mark, self._behind = marked.model_dump_json().partition(_quoted(self.MARK))
        assert mark, "the chunk has no mark"

    def with_text(self, text: str) -> str:
        return f"{self._before}{_quoted(text)}{self._behind}"


def _quoted(text: str) -> str:
    """As pydantic writes it."""
    return to_json(text).decode()


class Writer(Protocol):
    """Writes one answer: a whole, or chunks and a last one for the usage."""

    def answer(
        self, choices: Sequence[Collected], usage: UsageBody, metrics: MetricsBody | None
    ) -> Completion | ChatCompletion: ...

    def chunks(self, index: int, output: RequestOutput, usage: UsageBody | None = None) -> list[str]:
        """The chunks, as JSON, for news of choice ``index``; none when there is nothing to show yet.

        usage: for each of them to carry.
        """
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
