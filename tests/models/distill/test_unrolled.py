"""Attention over unrolled passes, against growing every branch by itself as a server does."""

import dataclasses

import torch
from torch import Tensor

from resispec.models.distill.unrolled import head_states, previous
from resispec.models.head.module import HeadModule


class Branch:
    """A memory of keys and values: committed text, then one branch."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One token at a time: it sees everything before it and itself."""
        self.keys.append(k)
        self.values.append(v)
        keys, values = (torch.cat(x).repeat_interleave(self.group, dim=1) for x in (self.keys, self.values))
        weights = (torch.einsum("qhd,khd->hqk", q, keys) * q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


def served(head: HeadModule, embedded: Tensor, hidden: Tensor, node: int, depth: int) -> Tensor:
    """The state of the node at position ``node``, ``depth`` levels below the root (0: the root)."""
    memory = Branch(head.config.num_heads // head.config.num_kv_heads)
    read = previous(hidden[None])[0]
    state = torch.empty(0)
    for position in range(node + 1):
        drafted = position > node - depth
        source = state if drafted else read[position : position + 1]
        state = head(embedded[position : position + 1], source, torch.tensor([position]), memory)
    return state[0]


def test_every_pass_equals_a_branch_grown_alone(head: HeadModule) -> None:
    head = head.double()
    torch.manual_seed(3)
    embedded, hidden = torch.randn(2, 2, 7, head.config.hidden_size).double()
    states = head_states(head, embedded, hidden, passes=4)
    assert len(states) == 4
    for text in range(2):
        for depth, state in enumerate(states):
            for node in range(depth, 7):
                expected = served(head, embedded[text], hidden[text], node, depth)
                torch.testing.assert_close(state[text, node], expected, rtol=0, atol=1e-6)


def test_a_branch_reads_no_layers_below_its_root(head: HeadModule) -> None:
    """What the target's layers say reaches a node by way of its root alone, as the last state does."""
    torch.manual_seed(4)
    size = head.config.hidden_size
    reader = HeadModule(dataclasses.replace(head.config, target_layers=(0, 1)))
    embedded, hidden = torch.randn(2, 1, 7, size)
    inputs = torch.randn(1, 7, 2 * size)
    states = head_states(reader, embedded, hidden, 3, inputs)
    joined = reader.joined(hidden, inputs)
    for depth, state in enumerate(states):
        for node in range(depth, 7):
            expected = served(reader, embedded[0], joined[0], node, depth)
            torch.testing.assert_close(state[0, node], expected, rtol=0, atol=1e-5)
    inputs.requires_grad_()
    head_states(reader, embedded, hidden, 3, inputs)[2][0, 5].pow(2).sum().backward()
    assert inputs.grad is not None
    assert (inputs.grad[0].abs().amax(-1) > 0).tolist() == [True] * 3 + [False] * 4


def test_what_a_node_may_not_see_has_no_gradient(head: HeadModule) -> None:
    """Node 5 of pass 3 has its root at 3, which reads the target's state of position 2: nothing later."""
    torch.manual_seed(3)
    embedded, hidden = torch.randn(2, 1, 7, head.config.hidden_size)
    embedded.requires_grad_()
    hidden.requires_grad_()
    head_states(head, embedded, hidden, passes=3)[2][0, 5].pow(2).sum().backward()
    assert (hidden.grad[0].abs().amax(-1) > 0).tolist() == [True] * 3 + [False] * 4
    assert (embedded.grad[0].abs().amax(-1) > 0).tolist() == [True] * 6 + [False]


def test_padding_at_the_right_changes_nothing(head: HeadModule) -> None:
    torch.manual_seed(3)
    embedded, hidden = torch.randn(2, 1, 7, head.config.hidden_size)
    whole = head_states(head, embedded, hidden, passes=3)
    short = head_states(head, embedded[:, :5], hidden[:, :5], passes=3)
    for long_state, short_state in zip(whole, short, strict=True):
        torch.testing.assert_close(long_state[:, :5], short_state, rtol=0, atol=1e-6)
