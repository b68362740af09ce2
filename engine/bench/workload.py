"""What a contender is given to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .prompts import PROMPT_SETS
from .settings import BenchSettings


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of equal length of answer, ``batch`` of them in flight until none is left."""

    prompts_name: str
    temperature: float
    batch: int
    tokens: int  # generated for every request, EOS or not
    requests: tuple[tuple[int, ...], ...]  # token ids of the prompts

    def warm_up(self) -> Workload:
        """A small piece of the same kind."""
        return replace(self, tokens=min(self.tokens, 8), requests=self.requests[: self.batch])


def encode_prompts(tokenizer: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """Token ids of a built-in set, laid out as a chat where the tokenizer has a template."""
    return tuple(tuple(_encode(tokenizer, text)) for text in PROMPT_SETS[name])


def make_workloads(
    settings: BenchSettings, prompts: dict[str, tuple[tuple[int, ...], ...]]
) -> tuple[Workload, ...]:
    """In the order of measuring. A batch larger than a set goes through the set again."""
    return tuple(
        Workload(name, temperature, batch, settings.tokens, _at_least(prompts[name], batch))
        for name in settings.prompts
        for temperature in settings.temperature
        for batch in settings.batch
    )


def _encode(tokenizer: Any, text: str) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer.encode(text))
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def _at_least(prompts: tuple[tuple[int, ...], ...], count: int) -> tuple[tuple[int, ...], ...]:
    """Whole rounds of the prompts, so that each weighs the same: at least ``count`` of them."""
    return prompts * -(-count // len(prompts))
