"""The model card that lies beside a draft's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .evaluate import DepthFigures

_UNKNOWN = "other"  # what model hubs call a licence that has no name with them


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """What a draft was trained on and how."""

    command: str
    data: str
    training_documents: int
    training_tokens: int
    held_out_documents: int
    vocabulary_share: float  # of the training output tokens that the draft vocabulary holds
    steps: int
    minutes: float
    seed: int
    licence: str  # as model hubs name it


def model_card(description: str, record: TrainingRecord, figures: Sequence[DepthFigures]) -> str:
    """Markdown with the front matter that model hubs read. description: from the title on."""
    rows = "\n".join(
        f"| {depth} | {level.overlap:.3f} | {level.sampled_top1:.3f} | {level.sampled_top4:.3f} "
        f"| {level.greedy_top1:.3f} | {level.greedy_top4:.3f} |"
        for depth, level in enumerate(figures, start=1)
    )
    deeper, where = "", "at every position"
    if len(figures) > 1:
        deeper = "Level 1 drafts the next token, deeper\nlevels read the draft's own states. "
        where = f"at up\nto {len(figures)} levels of the draft's own outputs"
    return f"""---
license: {record.licence}
tags: [speculative-decoding, draft]
---
{description}
## Figures on held-out text

Prompts that were kept out of training; the target at temperature 1. {deeper}*Overlap* is the chance
that one sampled candidate is accepted (the sum of min(p, q) over the whole vocabulary); *top-1* and *top-4*
say how often the token the target would draw, or its most likely one, is among the draft's first choices.

| level | overlap | sampled, top-1 | sampled, top-4 | most likely, top-1 | most likely, top-4 |
|---|---|---|---|---|---|
{rows}

## Training

| | |
|---|---|
| command | `{record.command}` |
| data | {record.data} |
| training | {record.training_documents} documents, {record.training_tokens} tokens |
| held out | {record.held_out_documents} documents |
| draft vocabulary | covers {record.vocabulary_share:.1%} of the output tokens |
| run | {record.steps} steps, {record.minutes:.0f} minutes, seed {record.seed} |

The loss is the cross entropy to the target's law, joined towards the end by the total variation, {where}.

## Licence

{record.licence}: that of the target named above, from which the draft was distilled.
"""


def licence_of(target: str, folder: Path) -> str:
    """The target's licence, as its own card in ``folder`` names it; "other" where there is none."""
    if target == "default":
        return "apache-2.0"
    card = folder / "README.md"
    if not card.is_file():
        return _UNKNOWN
    front = card.read_text(encoding="utf-8", errors="replace").split("---")[1:2]
    lines = [line.partition(":") for line in front[0].splitlines()] if front else []
    named = [value.strip() for key, _, value in lines if key.strip() == "license" and value.strip()]
    return named[0] if named else _UNKNOWN
