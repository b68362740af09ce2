"""How much each verifier keeps on a real pair: one node's acceptance, position by position, by children.

Children are proposed as the server proposes a tree's first level. Of each proposal the chance that one of
its children is kept is computed, not thrown, so that only the draws of the text and of the children vary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from resispec.models.load.causal import load_tokenizer

from ..bench.workload import encode_prompts
from ..config import ConfigError, EngineConfig
from ..load import load_pair
from .laws import LawSource, Positions
from .settings import PairSettings
from .splits import SplitRow, SplitTally
from .tally import Row, Tally

_PROMPT_SETS = ("chat", "code")


def audit_pair(settings: PairSettings, console: Console) -> list[Row]:
    """Sample text, propose, add up. Progress goes to ``console``. Raises ConfigError and ModelError."""
    tally = Tally(settings.children, settings.temperature, settings.seed)
    for positions in _sampled(settings, console):
        tally.add(positions)
    return tally.rows()


def audit_splits(settings: PairSettings, console: Console) -> list[SplitRow]:
    """As `audit_pair`, of `resispec` and every way to split the children. Raises the same."""
    tally = SplitTally(settings.children, settings.temperature)
    for positions in _sampled(settings, console):
        tally.add(positions)
    return tally.rows()


def _sampled(settings: PairSettings, console: Console) -> Iterator[Positions]:
    """Both models' logits along the target's own text, a text at a time."""
    config = EngineConfig(
        settings.target,
        draft=settings.draft,
        device=settings.device,
        dtype=settings.dtype,
        offline=settings.offline,
    )
    console.print(f"loading {settings.target} and its draft", style="dim")
    target, draft = load_pair(config)
    if draft is None:
        raise ConfigError("--pair needs a draft; give one with --draft")
    if draft.medusa is not None:
        raise ConfigError("--pair needs a draft that has a law to draw from; Medusa heads only name tokens")
    tokenizer = load_tokenizer(Path(target.path))
    prompts = [list(prompt) for name in _PROMPT_SETS for prompt in encode_prompts(tokenizer, name)]
    per_prompt = -(-settings.positions // len(prompts))
    longest = max(len(prompt) for prompt in prompts) + per_prompt + 1
    context = min(target.context, draft.context)
    if longest > context:
        raise ConfigError(
            f"--positions {settings.positions} makes texts of {longest} tokens, but the pair's context "
            f"is {context}"
        )
    source = LawSource(replace(config, max_model_len=longest), target, draft, longest)
    console.print(f"sampling {len(prompts)} texts of {per_prompt + 1} tokens", style="dim")
    texts = source.sample(prompts, per_prompt + 1, settings.temperature, settings.seed)
    for number, (text, prompt) in enumerate(zip(texts, prompts, strict=True), start=1):
        console.print(f"text {number} of {len(texts)}", style="dim")
        yield source.positions(text, len(prompt))
