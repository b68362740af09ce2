"""How often a draft would be right, on text it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Trainee
from .batches import batch_plan, load_batch
from .features import FeatureStore

_GROUP = 256  # positions whose full law is held at a time
_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class DepthFigures:
    """Means over the held-out positions for one level of the tree, the target at temperature 1.

    Deeper levels follow the text itself: what the draft would do once its first tokens were accepted.
    """

    overlap: float  # sum over the FULL vocabulary of min(p, q): acceptance of one sampled candidate
    sampled_top1: float  # a token drawn from p is the draft's first choice
    sampled_top4: float  # ... among its first four
    greedy_top1: float  # the target's most likely token is the draft's first choice
    greedy_top4: float


@torch.inference_mode()
def evaluate(
    trainee: Trainee,
    output_matrix: Tensor,
    store: FeatureStore,
    max_positions: int = 4096,
    seed: int = 0,
) -> list[DepthFigures]:
    """Figures of the trainee's levels, over at most ``max_positions`` positions of ``store``.

    ``output_matrix [full vocabulary, H]`` is the target's; tokens that the draft may not propose have
    ``q = 0``. Drawn tokens come from ``seed``.
    """
    generator = torch.Generator(output_matrix.device).manual_seed(seed)
    vocab_ids = trainee.vocab_ids.to(output_matrix.device)
    totals = torch.zeros(trainee.levels, 5, dtype=torch.float64)
    count = 0
    rows = output_matrix[vocab_ids]
    for documents in batch_plan(store, _BATCH_TOKENS, seed):
        batch = load_batch(store, documents, output_matrix)
        states = trainee.states(batch, trainee.levels)
        learned = batch.learned.flatten().nonzero().flatten()
        order = torch.randperm(len(learned), generator=generator, device=learned.device)
        chosen = learned[order[: max_positions - count]]
        for part in torch.split(chosen, _GROUP):
            p = (batch.hidden.flatten(0, 1)[part] @ output_matrix.T).float().softmax(dim=-1)
            drawn = torch.multinomial(p, 1, generator=generator)
            for depth, state in enumerate(states):
                q = (state.flatten(0, 1)[part].to(rows.dtype) @ rows.T).float().softmax(dim=-1)
                totals[depth] += _figures(p, q, drawn, vocab_ids).cpu()
        count += len(chosen)
        if count >= max_positions:
            break
    return [DepthFigures(*(total / max(count, 1)).tolist()) for total in totals]


def _figures(p: Tensor, q: Tensor, drawn: Tensor, vocab_ids: Tensor) -> Tensor:
    """Sums over positions of the five figures; ``p [M, full]``, ``q [M, V]``, ``drawn [M, 1]`` -> ``[5]``."""
    overlap = torch.minimum(p[:, vocab_ids], q).sum(dtype=torch.float64)
    best = vocab_ids[q.topk(min(4, q.shape[-1])).indices]
    greedy = p.argmax(dim=-1, keepdim=True)
    hits = [(best[:, :width] == wanted).any(dim=-1).sum() for wanted in (drawn, greedy) for width in (1, 4)]
    return torch.stack([overlap, *(hit.double() for hit in hits)])
