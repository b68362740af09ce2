"""Children of nodes: what the head and the tail's law are, and that the draws come from that law."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from resispec.engine.drawing import Drawing
from resispec.engine.proposers.children import Truncation, propose, propose_ranked, rank
from resispec.engine.verifiers.base import Proposal

LOGITS = torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0, -torch.inf]])


def call(
    logits: Tensor,
    head: int,
    tail: int,
    slots: int,
    width: int,
    u: float = 0.5,
    temperature: float = 1.0,
    vocab_ids: Tensor | None = None,
    truncation: Truncation | None = None,
) -> tuple[Proposal, Tensor]:
    rows = logits.shape[0]
    uniforms = torch.full((rows, slots), u, dtype=torch.float64)
    return propose(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), head),
        torch.full((rows,), tail),
        slots,
        width,
        uniforms,
        vocab_ids,
        truncation,
    )


def test_head_then_tail() -> None:
    proposal, log_probs = call(LOGITS, 2, 2, 5, 3, temperature=0.5)
    assert proposal.tokens[0, :2].tolist() == [1, 3]
    assert proposal.num_head.tolist() == [2]
    assert proposal.num_tail.tolist() == [2]
    assert proposal.tail_ids[0].tolist() == [2, 0, 4]
    expected = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64).div(0.5).softmax(0)
    torch.testing.assert_close(proposal.tail_probs[0], expected, rtol=1e-13, atol=0)
    drawn = proposal.tail_ids[0, proposal.tail_index[0, 2:4]]
    assert proposal.tokens[0, 2:].tolist() == [*drawn.tolist(), -1]
    whole = LOGITS[0].double().div(0.5).log_softmax(0)
    torch.testing.assert_close(log_probs[0, :4], whole[proposal.tokens[0, :4]], rtol=1e-12, atol=1e-12)
    assert log_probs[0, 4] == -torch.inf


def test_draws_have_the_recorded_law() -> None:
    """Chi-square, 40,000 draws over 4 cells: false alarm once in 10,000 (threshold 21.1 at 3 degrees)."""
    rows = 20_000
    uniforms = torch.from_numpy(np.random.default_rng(60).random((rows, 3)))
    logits = LOGITS.expand(rows, -1)
    one, two = torch.ones(rows, dtype=torch.int64), torch.full((rows,), 2)
    proposal, _ = propose(logits, torch.ones(rows), one, two, 3, 8, uniforms)
    counts = proposal.tail_index[:, 1:].flatten().bincount(minlength=8).double()
    expected = proposal.tail_probs[0] * rows * 2
    used = expected > 0
    assert int(used.sum()) == 4
    assert counts[~used].sum() == 0
    assert float(((counts - expected)[used] ** 2 / expected[used]).sum()) < 21.1
    pair = torch.corrcoef(proposal.tail_index[:, 1:].T.double())[0, 1]
    assert abs(float(pair)) < 5 / rows**0.5  # siblings are independent: 5 standard errors


def test_known_tokens_are_left_out_and_spare_ones_change_nothing() -> None:
    """A request's company may make room for more tokens than it needs itself."""
    known = torch.tensor([[3, -1]])
    temperature = torch.tensor([0.7])
    truncation = Truncation(torch.tensor([4]), torch.tensor([0.9], dtype=torch.float64), None)
    made = []
    for spare in (1, 2):
        ranked = rank(LOGITS, temperature, 3, truncation=truncation, num_spare=spare)
        torch.testing.assert_close(
            ranked.log_probs(known)[0, 0], ranked.log_law[0, ranked.ids[0].tolist().index(3)], rtol=0, atol=0
        )
        one, uniforms = torch.tensor([1]), torch.full((1, 2), 0.4, dtype=torch.float64)
        made.append(propose_ranked(ranked.without(known), temperature, one, one, 2, 2, uniforms))
    for proposal, scores in made:
        assert proposal.tokens[0, 0] == 1
        assert 3 not in proposal.tail_ids[proposal.tail_probs > 0]
        assert torch.equal(proposal.tail_probs, made[0][0].tail_probs)
        assert torch.equal(proposal.tokens, made[0][0].tokens)
        assert torch.equal(scores, made[0][1])


def test_greedy_rows_have_no_tail() -> None:
    logits = LOGITS.expand(2, -1)
    proposal, _ = propose(
        logits,
        torch.tensor([0.0, 1.0]),
        torch.tensor([1, 1]),
        torch.tensor([2, 2]),
        3,
        4,
        torch.full((2, 3), 0.9, dtype=torch.float64),
    )
    assert proposal.num_head.tolist() == [3, 1]
    assert proposal.num_tail.tolist() == [0, 2]
    assert proposal.tokens[0].tolist() == [1, 3, 2]
    assert proposal.tail_probs[0].sum() == 0


def test_excluded_tokens_are_never_proposed() -> None:
    for u in (0.0, 1 - 2.0**-53):
        proposal, _ = call(LOGITS, 1, 3, 4, 10, u)
        assert 5 not in proposal.tokens[0].tolist()
    proposal, _ = call(LOGITS, 8, 0, 8, 0)
    assert proposal.num_head.tolist() == [5]
    assert proposal.tokens[0].tolist() == [1, 3, 2, 0, 4, -1, -1, -1]


def test_an_empty_tail_draws_nothing() -> None:
    proposal, log_probs = call(LOGITS, 5, 1, 6, 4)
    assert proposal.num_tail.tolist() == [0]
    assert proposal.tokens[0, 5] == -1
    assert (proposal.tail_probs == 0).all()
    assert not log_probs.isnan().any()


def test_a_row_that_is_not_finite_proposes_nothing() -> None:
    logits = LOGITS.repeat(3, 1)
    logits[0, 2], logits[1] = torch.nan, -torch.inf
    proposal, log_probs = call(logits, 1, 1, 2, 4)
    assert (proposal.num_head + proposal.num_tail).tolist() == [0, 0, 2]
    assert (proposal.tokens[:2] == -1).all()
    assert not proposal.tail_probs.isnan().any()
    assert not log_probs.isnan().any()


def test_ids_of_the_target() -> None:
    ids = torch.tensor([10, 11, 12, 13, 14, 15])
    proposal, _ = call(LOGITS, 1, 1, 2, 3, u=0.0, vocab_ids=ids)
    assert proposal.tokens.tolist() == [[11, 13]]
    assert proposal.tail_ids.tolist() == [[13, 12, 10]]


def test_truncation_of_the_tail() -> None:
    def kept(**off: Tensor) -> tuple[list[int], list[int]]:
        proposal, _ = call(LOGITS, 1, 1, 2, 5, truncation=Truncation(**off))
        assert proposal.tail_probs.sum() in (0, 1) or abs(proposal.tail_probs.sum() - 1) < 1e-12
        return proposal.tail_ids[proposal.tail_probs > 0].tolist(), proposal.num_tail.tolist()

    assert kept() == ([3, 2, 0, 4], [1])
    assert kept(top_k=torch.tensor([2])) == ([3], [1])
    assert kept(top_k=torch.tensor([0])) == ([3, 2, 0, 4], [1])
    assert kept(min_p=torch.tensor([0.1])) == ([3, 2], [1])  # e^-1, e^-2 >= 0.1 > e^-3
    assert kept(top_p=torch.tensor([0.5])) == ([], [0])  # the best token alone has .64
    assert kept(top_p=torch.tensor([0.8])) == ([3], [1])


def test_draws_without_replacement_have_the_recorded_law() -> None:
    """Chi-square of ordered pairs, 20,000 over 12 cells: false alarm once in 10,000 (37.4 at 11 degrees)."""
    rows = 20_000
    uniforms = torch.from_numpy(np.random.default_rng(61).random((rows, 2)))
    two, none = torch.full((rows,), 2), torch.zeros(rows, dtype=torch.int64)
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(rows, -1)
    kind = Drawing.WITHOUT_REPLACEMENT
    proposal, _ = propose(logits, torch.ones(rows), none, two, 2, 8, uniforms, drawing=kind)
    assert proposal.drawings == {kind}
    q = proposal.tail_probs[0, :4]
    counts = (proposal.tail_index[:, 0] * 4 + proposal.tail_index[:, 1]).bincount(minlength=16).double()
    expected = rows * (q[:, None] * q / (1 - q[:, None])).fill_diagonal_(0).flatten()
    used = expected > 0
    assert counts[~used].sum() == 0
    assert float(((counts - expected)[used] ** 2 / expected[used]).sum()) < 37.4


def test_draws_without_replacement_end_with_the_law() -> None:
    rows = torch.full((3,), 4)
    uniforms = torch.tensor([[0.0] * 4, [0.5] * 4, [1 - 2.0**-53] * 4], dtype=torch.float64)
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf, 2.0]]).expand(3, -1)
    kind = Drawing.WITHOUT_REPLACEMENT
    proposal, _ = propose(logits, torch.ones(3), 0 * rows, rows, 4, 5, uniforms, drawing=kind)
    assert proposal.num_tail.tolist() == [3, 3, 3]
    for row in proposal.tokens.tolist():
        assert sorted(row) == [-1, 0, 1, 4]
