"""The output law of a verifier at one node: its own tests and residuals, added up over all draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..drawing import Drawing
from ..verifiers.base import AnyVerifier, Decision, Links, Proposal, TargetLaw
from ..verifiers.joint import JointTrials
from ..verifiers.resispec import solve
from ..verifiers.resispec_tree import ResiSpecTreeVerifier
from ..verifiers.trials import NodeRule, Trials
from .proposals import Source, all_multisets, all_tuples, one_token_tuples

# Rules whose test of a draw looks at no other draw: tuples of one token each show every test there is.
_BY_TOKEN = frozenset({"resispec", "resispec-tree", "specinfer", "spectr", "block"})
_BY_MULTISET = frozenset({"target"})  # and these do not look at the order of draws
_FEW_TUPLES = 1 << 12  # up to here all are enumerated tuple by tuple
_MOST_TUPLES = 1 << 18


class TooManyError(Exception):
    """An enumeration that would take too long."""


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """What comes out at a node, by token. All [V] float64."""

    kept: Tensor  # probability that this token is a kept child
    corrected: Tensor  # that it is the correction

    @property
    def law(self) -> Tensor:
        return self.kept + self.corrected

    @property
    def acceptance(self) -> float:
        return float(self.kept.sum())


def node_law(verifier: AnyVerifier, node: Source) -> NodeLaw:
    """By enumeration. Raises TooManyError."""
    if node.num_tuples > _FEW_TUPLES and verifier.name in _BY_TOKEN:
        return _law_by_token(verifier, node)
    by_multiset = node.num_tuples > _FEW_TUPLES and verifier.name in _BY_MULTISET
    number = node.num_multisets if by_multiset else node.num_tuples
    if number > _MOST_TUPLES:
        raise TooManyError(f"{number} proposals; {_MOST_TUPLES} are the most that are enumerated")
    kept, corrected = torch.zeros_like(node.p), torch.zeros_like(node.p)
    for drawn in all_multisets(node) if by_multiset else all_tuples(node):
        taken = turns(verifier, drawn.law, drawn.proposal)
        reach = pad((1 - taken.chance).cumprod(dim=1), (1, 0), value=1.0) * drawn.weight[:, None]
        tokens = drawn.proposal.tokens.gather(1, taken.slot).clamp(min=0)
        kept.index_add_(0, tokens.flatten(), (reach[:, :-1] * taken.chance).flatten())
        corrected += reach[:, -1] @ correction_laws(verifier, drawn.law, drawn.proposal, taken.threshold)
    return NodeLaw(kept, corrected)


def _law_by_token(verifier: AnyVerifier, node: Source) -> NodeLaw:
    drawn = one_token_tuples(node)
    taken = turns(verifier, drawn.law, drawn.proposal)
    kept = torch.zeros_like(node.p)
    reach = 1.0
    support = torch.tensor(node.support)
    for turn in range(taken.slot.shape[1]):
        if turn < node.num_tail:
            mass = reach * drawn.weight * taken.chance[:, turn]
            kept.index_add_(0, support, mass)
        else:
            mass = reach * taken.chance[:1, turn]
            kept.index_add_(0, drawn.proposal.tokens[0, taken.slot[:1, turn]], mass)
        reach -= float(mass.sum())
    laws = correction_laws(verifier, drawn.law, drawn.proposal, taken.threshold)
    return NodeLaw(kept, max(reach, 0.0) * laws[0])


@dataclass(frozen=True, slots=True)
class Turns:
    """The slots of ``B`` nodes, whose children are leaves, in the order in which they have their turns."""

    slot: Tensor  # [B, K] int64: which slot's turn it is
    chance: Tensor  # [B, K] float64: to be kept, when its turn comes
    threshold: Tensor  # [B]: what the verifier's residual needs


def turns(verifier: AnyVerifier, law: TargetLaw, proposal: Proposal) -> Turns:
    """Tail slots come in order of drawing, then head slots."""
    trials = _trials(verifier, law, proposal)
    slot = torch.arange(proposal.tokens.shape[1], device=law.weights.device)
    num_head = trials.num_head if isinstance(trials, Trials) else proposal.num_head
    in_head = slot < num_head[:, None]
    order = torch.where(in_head, slot + len(slot), slot).argsort(dim=1)
    if isinstance(trials, Trials):
        chance = trials.accept_probability()
        # A head shares one draw: a slot's share of it, over what the slots before it left.
        share = torch.where(in_head, chance, 0.0)
        before = pad(share.cumsum(dim=1), (1, 0))[:, :-1]
        chance = torch.where(in_head & (before < 1), chance / (1 - before), chance).clamp(max=1)
    else:
        chance = trials.weight
    return Turns(order, chance.gather(1, order), trials.threshold)


def _trials(verifier: AnyVerifier, law: TargetLaw, proposal: Proposal) -> Trials | JointTrials:
    """At roots whose children are leaves."""
    if isinstance(verifier, NodeRule):
        return verifier.trials(law, proposal)
    assert isinstance(verifier, ResiSpecTreeVerifier)
    rows = torch.arange(len(law.weights), device=law.weights.device)
    links = Links(torch.full_like(proposal.tokens, -1), (rows,), torch.ones_like(rows, dtype=torch.bool))
    return verifier.trials(law, proposal, links)[0]


def correction_laws(verifier: AnyVerifier, law: TargetLaw, proposal: Proposal, threshold: Tensor) -> Tensor:
    """[B, V]: the law of the correction, normalised; 0 where there can be none."""
    none = torch.full_like(proposal.num_head, -1)
    weights = verifier.residual(law, proposal, Decision(none, threshold)).dense()
    total = weights.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


def thresholds_and_tests(node: Source, verifier: NodeRule) -> tuple[list[float], list[list[float | None]]]:
    """Of `resispec`: ``t_1 .. t_n, 0``, and each test's accept probability by token (None: never drawn)."""
    assert node.drawing is Drawing.HEAD_AND_TAIL
    drawn = one_token_tuples(node)
    _, solved = solve(drawn.law, drawn.proposal)
    accept = verifier.trials(drawn.law, drawn.proposal).accept_probability()
    tests: list[list[float | None]] = []
    for test in range(node.num_tail):
        row: list[float | None] = [None] * len(node.p)
        for place, token in enumerate(node.support):
            row[token] = float(accept[place, len(node.head) + test])
        tests.append(row)
    return solved.t[0].tolist(), tests
