"""Held-out figures against a computation by hand."""

import pytest
import torch
from transformers import LlamaForCausalLM

from resispec.models.distill.batches import load_batch
from resispec.models.distill.evaluate import _figures, evaluate
from resispec.models.distill.features import FeatureStore
from resispec.models.distill.head import HeadTrainee
from resispec.models.distill.unrolled import head_states
from resispec.models.head.module import HeadModule

VOCAB_IDS = torch.arange(0, 24, 2)


def test_figures_by_hand() -> None:
    p = torch.tensor([[0.1, 0.5, 0.1, 0.3], [0.2, 0.2, 0.5, 0.1]])
    q = torch.tensor([[0.4, 0.6], [0.7, 0.3]])  # of tokens 1 and 3
    overlap = (min(0.5, 0.4) + min(0.3, 0.6)) + (min(0.2, 0.7) + min(0.1, 0.3))
    drawn = torch.tensor([[3], [0]])
    # Sampled: first choices are 3 and 1, so one hit; greedy tokens are 1 and 2: the first is among the four.
    assert _figures(p, q, drawn, torch.tensor([1, 3])).tolist() == pytest.approx([overlap, 1, 1, 0, 1])


def test_overlap_of_every_level(head: HeadModule, target: LlamaForCausalLM, store: FeatureStore) -> None:
    matrix, embeddings = target.lm_head.weight.detach(), target.model.embed_tokens.weight.detach()
    figures = evaluate(HeadTrainee(head, embeddings, VOCAB_IDS), matrix, store, max_positions=10_000)
    batch = load_batch(store, list(range(len(store))), torch.empty(0))
    with torch.no_grad():
        states = head_states(head, embeddings[batch.tokens], batch.hidden, 3)
    for state, level in zip(states, figures, strict=True):
        total, greedy, count = 0.0, 0, 0
        for text, position in batch.learned.nonzero().tolist():
            p = (matrix @ batch.hidden[text, position]).softmax(-1)
            q = torch.zeros(len(matrix))
            q[VOCAB_IDS] = (matrix[VOCAB_IDS] @ state[text, position]).softmax(-1)
            total += float(torch.minimum(p, q).sum())
            greedy += int(p.argmax() == q.argmax())
            count += 1
        assert level.overlap == pytest.approx(total / count, abs=1e-5)
        assert level.greedy_top1 == pytest.approx(greedy / count, abs=1e-9)
        assert level.greedy_top1 <= level.greedy_top4 <= 1
        assert level.sampled_top1 <= level.sampled_top4 <= 1


def test_a_few_positions_are_enough_when_asked(
    head: HeadModule, target: LlamaForCausalLM, store: FeatureStore
) -> None:
    matrix, embeddings = target.lm_head.weight.detach(), target.model.embed_tokens.weight.detach()
    for level in evaluate(HeadTrainee(head, embeddings, VOCAB_IDS), matrix, store, max_positions=7):
        assert round(level.sampled_top4 * 7) == pytest.approx(level.sampled_top4 * 7)
