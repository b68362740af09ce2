"""Step traces, from the values that verification has already: read back only for who asked.

Nothing here takes part in a decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..sampling.draw import Draw
from ..text_decoder import TextDecoder
from ..trace import BONUS, CORRECTION, FORCED, HEAD, TAIL, TARGET, StepTrace, TraceCandidate, TraceToken
from ..tree import CandidateTree
from ..verifiers.base import Decision, TargetLaw
from ..verifiers.explain import explain
from ..verifiers.table import VERIFIERS
from ..verifiers.walk import Walk
from .candidates import Candidates


@dataclass(frozen=True, slots=True)
class Trees:
    """The expanded nodes of a step, and what was decided there."""

    candidates: Candidates  # of E nodes
    law: TargetLaw  # [E, V]
    uniforms: Tensor  # [E, K] float64
    decided: Decision


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the walks of ``R`` requests ended, and the last tokens."""

    roots: SequenceOf[int]  # [R] nodes
    walk: Walk
    law: TargetLaw  # [R, V]: the target's
    weights: Tensor  # [R, V] float64: of the law that the last tokens were drawn from
    last: Draw


def trace_request(
    owner: int, verifier: str, position: int, tokens: SequenceOf[int], trees: Trees | None, ends: Ends
) -> StepTrace:
    """The step of one request. owner: its row in ``ends``. tokens: the path's, then the last one."""
    root, final = ends.roots[owner], int(ends.walk.final[owner])
    rows = [] if trees is None else [row for row, own in enumerate(trees.candidates.owners) if own == owner]
    last = tokens[-1]
    weights = ends.weights[owner]
    p = float(ends.law.weights[owner, last].double() / ends.law.total[owner])
    total = float(weights.sum())
    drawn = float(weights[last]) / total if total > 0 else p  # the correction's mass had rounded to 0
    if trees is None or not rows:
        return StepTrace(position, verifier, (), (TraceToken(last, "", TARGET, p, drawn),))
    path = [int(node) for node in ends.walk.path[owner] if node >= 0]
    candidates = tuple(_candidates(trees, rows, verifier, root, {root, *path}))
    kept = sorted((c for c in candidates if c.kept), key=lambda candidate: candidate.depth)
    row = int(trees.candidates.topology.expanded_row[final])
    had_children = row >= 0 and bool((trees.candidates.proposal.tokens[row] >= 0).any())
    end = TraceToken(last, "", CORRECTION if had_children else BONUS, p, drawn)
    return StepTrace(
        position,
        verifier,
        candidates,
        (*(TraceToken(c.token_id, "", c.origin, c.p, None) for c in kept), end),
    )


def with_forced(step: StepTrace, forced: SequenceOf[int]) -> StepTrace:
    """The step with tokens behind its own that the answer's form forced."""
    return replace(
        step, tokens=step.tokens + tuple(TraceToken(token, "", FORCED, 1.0, None) for token in forced)
    )


def with_texts(step: StepTrace, delivered: SequenceOf[int], decoder: TextDecoder) -> StepTrace:
    """The step cut to the tokens that were delivered, each with the text that it completes."""
    tokens = (replace(token, text=decoder.push(token.token_id)) for token in step.tokens[: len(delivered)])
    return replace(step, tokens=tuple(tokens))


@dataclass(frozen=True, slots=True)
class _Child:
    """A candidate whose place in the walk is not known yet."""

    candidate: TraceCandidate
    node: int
    turn: int
    chosen: bool  # by the decision at its parent


def _candidates(
    trees: Trees, rows: SequenceOf[int], verifier: str, root: int, path: set[int]
) -> Iterator[TraceCandidate]:
    """Level by level. path: the kept nodes, the root among them."""
    children = _children(trees, rows, verifier, root)
    entered = {root: True}  # by node: whether tests were made there
    level, depth = [root], 1
    while level:
        following: dict[int, None] = {}
        for node in level:
            siblings = children.get(node, [])
            last = min((child.turn for child in siblings if child.chosen), default=len(siblings) * 2)
            for child in siblings:
                reached = entered[node] and child.turn <= last
                kept = child.chosen and node in path
                # A rule that decides on a child by what is below it has made its tests there.
                looked = kept if child.candidate.uniform is not None else reached
                entered[child.node] = entered.get(child.node, False) or looked
                following[child.node] = None
                yield replace(child.candidate, depth=depth, reached=reached, kept=kept)
        level, depth = list(following), depth + 1


def _children(
    trees: Trees, rows: SequenceOf[int], verifier: str, root: int
) -> Mapping[int, SequenceOf[_Child]]:
    """Of every expanded node of a tree, read back to the host."""
    index = torch.tensor(rows, device=trees.uniforms.device)
    law, uniforms = trees.law.rows(index), trees.uniforms[index]
    proposal = replace(trees.candidates.proposal.rows(index), drawings=trees.candidates.drawings(rows))
    tests = explain(VERIFIERS[verifier], law, proposal, trees.candidates.links(rows), uniforms)
    p = law.weights.gather(1, proposal.tokens.clamp_min(0)).double() / law.total[:, None]
    q = torch.full_like(p, torch.nan)
    slot = torch.arange(p.shape[1], device=p.device)
    if proposal.tail_probs.shape[1] > 0:
        drawn = proposal.tail_probs.gather(1, proposal.tail_index)
        q = torch.where(slot < proposal.num_head[:, None], q, drawn)
    draft = _draft_probs(trees.candidates)[index]
    figures = torch.stack([p, q, draft, tests.accept, tests.threshold, tests.uniform], dim=2).tolist()
    topology = trees.candidates.topology.child_node[index]
    chosen = trees.decided.child[index, None] == slot
    links = [proposal.tokens, topology, tests.turn, tests.shared.long(), chosen.long()]
    places = torch.stack(links, dim=2).tolist()
    children: dict[int, list[_Child]] = {}
    nodes, num_head = trees.candidates.nodes[index].tolist(), proposal.num_head.tolist()
    tree = trees.candidates.places[rows[0]].tree
    for row, node in enumerate(nodes):
        children.setdefault(node, [])
        for child, (token, below, turn, shared, taken) in enumerate(places[row]):
            if token < 0:
                continue
            p_here, q_here, draft_here, accept, threshold, uniform = figures[row][child]
            candidate = TraceCandidate(
                slot=below - root,
                parent=node - root,
                depth=0,
                child=child,
                token_id=token,
                origin=_origin(below - root, is_head=child < num_head[row], tree=tree),
                p=p_here,
                q=_number(q_here),
                draft=_number(draft_here),
                accept=accept,
                threshold=_number(threshold),
                uniform=_number(uniform),
                shared=bool(shared),
                reached=False,
                kept=False,
            )
            children[node].append(_Child(candidate, below, turn, bool(taken)))
    return children


def _origin(slot: int, *, is_head: bool, tree: CandidateTree) -> str:
    if tree.known_node(slot):
        return tree.source_of(slot)
    return HEAD if is_head else TAIL


def _draft_probs(candidates: Candidates) -> Tensor:
    """[E, K] float64: the draft's probability of every child; NaN where the draft was not asked."""
    tokens = candidates.proposal.tokens
    probs = torch.full(tokens.shape, torch.nan, dtype=torch.float64, device=tokens.device)
    first = 0
    for level in candidates.levels:
        end = first + level.parents.numel()
        if level.law is not None:
            probs[first:end] = level.law.probs(tokens[first:end])
        first = end
    return probs


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
