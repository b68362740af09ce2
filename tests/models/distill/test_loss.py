"""The loss and its hand-made gradient, against autograd on the formula as written."""

import pytest
import torch
from torch import Tensor

from resispec.models.distill import loss as module
from resispec.models.distill.loss import draft_loss


def as_written(drafted: Tensor, hidden: Tensor, rows: Tensor, weights: Tensor, tv_share: float) -> Tensor:
    p = (hidden @ rows.T).softmax(-1)
    q = (drafted @ rows.T).softmax(-1)
    cross_entropy = -(p * q.log()).sum(-1).mean(-1)
    rejection = 1 - torch.minimum(p, q).sum(-1).mean(-1)
    return (weights * ((1 - tv_share) * cross_entropy + tv_share * rejection)).sum()


@pytest.mark.parametrize("tv_share", [0.0, 0.4, 1.0])
def test_value_and_gradient(tv_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROUP", 4)  # ten positions in groups of 4, 4 and 2
    torch.manual_seed(0)
    drafted, other = torch.randn(2, 2, 10, 6)
    hidden, rows, weights = torch.randn(10, 6), torch.randn(9, 6), torch.tensor([0.7, 0.3])
    drafted.requires_grad_()
    value = draft_loss(drafted, hidden, rows, weights, tv_share)
    wanted = as_written(drafted, hidden, rows, weights, tv_share)
    torch.testing.assert_close(value, wanted)
    (ours,) = torch.autograd.grad(3 * value, drafted)
    (theirs,) = torch.autograd.grad(3 * wanted, drafted)
    torch.testing.assert_close(ours, theirs)
    assert draft_loss(other, hidden, rows, weights, tv_share) != value


def test_the_target_itself_has_the_least_loss() -> None:
    torch.manual_seed(0)
    hidden, rows = torch.randn(10, 6), torch.randn(9, 6)
    exact = hidden[None].clone().requires_grad_()
    draft_loss(exact, hidden, rows, torch.ones(1), 0.0).backward()
    assert exact.grad.abs().max() < 1e-6
    assert float(draft_loss(exact.detach(), hidden, rows, torch.ones(1), 1.0)) == pytest.approx(0, abs=1e-6)
