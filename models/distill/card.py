"""The model card that lies beside a head's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..head.config import HeadConfig
from .evaluate import DepthFigures


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """What a head was trained on and how."""

    command: str
    data: str
    training_documents: int
    training_tokens: int
    held_out_documents: int
    vocabulary_share: float  # of the training output tokens that the draft vocabulary holds
    steps: int
    minutes: float
    seed: int


def model_card(
    config: HeadConfig, record: TrainingRecord, figures: Sequence[DepthFigures], parameters: int
) -> str:
    """Markdown with the front matter that model hubs read."""
    rows = "\n".join(
        f"| {depth} | {level.overlap:.3f} | {level.sampled_top1:.3f} | {level.sampled_top4:.3f} "
        f"| {level.greedy_top1:.3f} | {level.greedy_top4:.3f} |"
        for depth, level in enumerate(figures, start=1)
    )
    return f"""---
license: apache-2.0
tags: [speculative-decoding, draft-head]
---
# Draft head for {config.target.name}

One decoder layer ({parameters / 1e6:.1f} M weights, bfloat16) that reads the target's last hidden state
and the next token, and drafts with the target's own output matrix, cut to {config.draft_vocab_size} tokens.
It holds no embedding and no output matrix and is of no use without its target, which ResiSpec checks at load.

## Figures on held-out text

Prompts that were kept out of training; the target at temperature 1. Level 1 drafts the next token, deeper
levels read the head's own states. *Overlap* is the chance that one sampled candidate is accepted (the sum
of min(p, q) over the whole vocabulary); *top-1* and *top-4* say how often the token the target would draw,
or its most likely one, is among the head's first choices.

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

The loss is the cross entropy to the target's law, joined towards the end by the total variation, at up
to three levels of the head's own outputs.

## Licence

Apache-2.0. The head was distilled from the target named above.
"""
