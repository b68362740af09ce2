"""What a contender is given to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..request import StructuredSpec
from .forms import FORMS
from .prompts import PROMPT_SETS
from .settings import BenchSettings

T = TypeVar("T")

_ROUNDS = 3  # of a batch whose answers have forms


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, ``batch`` of them in flight until none is left. Answers are equally long, or have forms."""

    prompts_name: str
    temperature: float
    batch: int  # 0: as many as come, where they come at a rate
    tokens: int  # generated for every request, EOS or not; at most, where answers have forms
    requests: tuple[tuple[int, ...], ...] = ()  # token ids of the prompts
    texts: tuple[str, ...] = ()  # or the prompts themselves, for a server whose tokens nobody knows
    rate: float | None = None  # requests a second, at random moments; None: the next follows the last
    forms: tuple[StructuredSpec, ...] = ()  # of the answers, one for each request; empty: they have none
    intruder: tuple[int, ...] | None = None  # token ids of a long prompt that comes in between, once

    @property
    def num_requests(self) -> int:
        return len(self.requests or self.texts)

    def warm_up(self) -> Workload:
        """A small piece of the same kind."""
        few = max(1, self.batch)
        return replace(
            self,
            tokens=min(self.tokens, 8),
            requests=self.requests[:few],
            texts=self.texts[:few],
            forms=self.forms[:few],
            intruder=None,
        )


def encode_prompts(tokenizer: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """Token ids of a built-in set, laid out as a chat where the tokenizer has a template."""
    return tuple(tuple(_encode(tokenizer, text)) for text in PROMPT_SETS[name])


def make_workloads(
    settings: BenchSettings, prompts: dict[str, tuple[tuple[int, ...], ...]]
) -> tuple[Workload, ...]:
    """In the order of measuring. A batch larger than a set goes through the set again."""
    plain = tuple(
        _workload(name, temperature, batch, settings.tokens, prompts[name])
        for name in settings.prompts
        for temperature in settings.temperature
        for batch in settings.batch
    )
    if settings.intruder is None:
        return plain
    long = long_prompt(prompts, settings.intruder)
    disturbed = (
        replace(work, prompts_name=f"{work.prompts_name}+{len(long)}", intruder=long)
        for work in plain
        if work.batch > 1
    )
    return (*plain, *disturbed)


def _workload(
    name: str, temperature: float, batch: int, tokens: int, prompts: tuple[tuple[int, ...], ...]
) -> Workload:
    if name not in FORMS:
        return Workload(name, temperature, batch, tokens, at_least(prompts, batch))
    # Answers of all lengths: few of the requests should be the last ones, in a batch that is not full.
    count = batch if batch == 1 else _ROUNDS * batch
    requests, forms = at_least(prompts, count), at_least(FORMS[name], count)
    return Workload(name, temperature, batch, tokens, requests, forms=forms)


def long_prompt(prompts: Mapping[str, Sequence[tuple[int, ...]]], length: int) -> tuple[int, ...]:
    """Token ids of the prompts, over and over, up to a length."""
    ids = [token for group in prompts.values() for prompt in group for token in prompt]
    return tuple((ids * -(-length // len(ids)))[:length])


def _encode(tokenizer: Any, text: str) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer.encode(text))
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def at_least(prompts: tuple[T, ...], count: int) -> tuple[T, ...]:
    """Whole rounds of the prompts, so that each weighs the same: at least ``count`` of them."""
    return prompts * -(-count // len(prompts))
