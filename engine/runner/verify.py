"""From the target's logits to the tokens each request gets: laws, tests, walk and last draw.

Everything runs on the device for all requests together; one tensor is read back at the end.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resispec.models.device import device_for, put

from ..grammar.base import Constraint
from ..native import kernels_for
from ..outputs import TokenLogprobs
from ..request import SamplingParams
from ..sampling.bad_words import recent_tokens
from ..sampling.draw import Draw, Residual, draw_or_fall_back
from ..sampling.penalties import SeenTokens, seen_tokens
from ..sampling.rows import SamplingRows, is_penalised, sampling_rows
from ..sampling.weights import NodeContext, NodeLaws, greedy_tokens, target_law
from ..sources.base import TopTokens
from ..trace import StepTrace
from ..verifiers.base import TreeVerifier
from ..verifiers.table import VERIFIERS
from ..verifiers.walk import Walk, ended, walk
from .ahead import Lookahead, unpack_ahead
from .batch import TargetBatch
from .candidates import Candidates, gather_candidates
from .decisions import Decisions
from .greedy import Followed, follow
from .logprobs import measure_walks, unpack_walk
from .masks import NodeMasks, node_masks
from .native_walk import can_walk, walk_all
from .tops import measure_tops, unpack_tops
from .trace import Ends, Trees, trace_request


class Owner(msgspec.Struct, frozen=True, eq=False):
    """What verification must know of one request that samples in this step."""

    sampling: SamplingParams
    verifier: str
    token_ids: SequenceOf[int]  # prompt and committed output
    num_prompt: int
    tests: NDArray[np.float64]  # uniforms, see `CandidateTree.num_tests`
    final: float  # uniform of the last token

    @property
    def output(self) -> SequenceOf[int]:
        return self.token_ids[self.num_prompt :]

    traced: bool = False
    constraint: Constraint | None = None
    wants_tops: bool = False  # the target's top tokens at its nodes are wanted
    looks_ahead: bool = False  # what heads on the last state say is wanted


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What one request's step gave."""

    slots: tuple[int, ...]  # kept nodes, as offsets from the request's root node
    children: tuple[int, ...]  # which child of its parent each of them is
    tokens: tuple[int, ...]  # their tokens, then the correction or bonus token
    underflow: bool  # the correction's mass had rounded to 0; drawn from the target instead
    bad: bool  # the target's logits were not numbers; the tokens mean nothing
    trace: StepTrace | None = None  # where it was asked for
    logprobs: tuple[TokenLogprobs, ...] = ()  # of `tokens`, if the request asked for them
    tops: tuple[TopTokens, ...] = ()  # of all nodes, kept or not, if the request's sources want them
    ahead: tuple[tuple[int, ...], ...] = ()  # what heads say of the places behind `tokens`, likewise


@dataclass(frozen=True, slots=True)
class _Verdict:
    """On R requests. What a trace shows beside it, where it was made: laws and residual of the ends."""

    end: Walk
    last: Draw
    bad: Tensor  # [R] bool: a law on the way means nothing
    laws: NodeLaws | None = None
    residual: Residual | None = None
    trees: Trees | None = None


class Verification:
    """The laws and draws of one step."""

    def __init__(
        self, owners: SequenceOf[Owner], num_ids: int, eos_token_ids: SequenceOf[int], device: torch.device
    ) -> None:
        self._owners = owners
        self._num_ids = num_ids
        self._eos = eos_token_ids
        self._device = device

    def run(
        self,
        logits: Tensor,
        batch: TargetBatch,
        max_depth: int,
        ahead: Lookahead | None = None,
    ) -> list[Outcome]:
        """logits: [nodes, V] float32. Reads the result back to the host."""
        logits = logits[:, : self._num_ids]  # padded rows have no token
        walked = self._walk(logits, batch, max_depth)
        if walked is not None and self._wants_tokens_only():
            return [_outcome(row, max_depth) for row in walked.tolist()]
        roots = put(batch.roots, self._device)
        traced = any(owner.traced for owner in self._owners)
        if walked is not None:
            verdict = _unpacked(walked, roots, max_depth)
        else:
            verdict = self._judge(logits, batch, roots, max_depth, traced=traced)
        end, last, bad = verdict.end, verdict.last, verdict.bad
        if not traced and not batch.groups and self._wants_tokens_only():
            return _single_tokens(last, bad)
        columns = [end.num_kept, last.tokens, last.empty.long(), bad.long()]
        result, kept = torch.stack(columns, dim=1), end.path
        if end.path.shape[1]:
            kept = torch.where(end.path >= 0, self._tokens(batch)[end.path.clamp_min(0)], -1)
            result = torch.cat([result, end.path - roots[:, None], kept, end.children], dim=1)
        observed = [node for node, owner in enumerate(batch.node_owner) if self._owners[owner].wants_tops]
        tops = measure_tops(logits, self._tokens(batch), observed) if observed else None
        logprobs = self._measure(logits, roots, end, kept, last.tokens)
        looking = [i for i, owner in enumerate(self._owners) if owner.looks_ahead and ahead is not None]
        said = None
        if ahead is not None and looking:
            said = ahead.measure(batch.inputs.logits_index[end.final[looking]], self._num_ids)
        rows, scores, top_rows, said_rows = self._read(result, logprobs, tops, said)
        outcomes = [_outcome(row, end.path.shape[1]) for row in rows]
        if logprobs is not None:
            outcomes = self._with_logprobs(outcomes, scores, end.path.shape[1])
        if tops is not None:
            by_owner = unpack_tops([batch.node_owner[node] for node in observed], top_rows)
            outcomes = [
                msgspec.structs.replace(outcome, tops=by_owner.get(i, ()))
                for i, outcome in enumerate(outcomes)
            ]
        for owner, heads in zip(looking, said_rows, strict=True):
            outcomes[owner] = msgspec.structs.replace(outcomes[owner], ahead=unpack_ahead(heads))
        if traced and verdict.laws is not None and verdict.residual is not None:
            ends = Ends(batch.roots, end, verdict.laws.law, verdict.residual.dense(), last)
            return self._trace(outcomes, verdict.trees, ends)
        return outcomes

    def _judge(
        self, logits: Tensor, batch: TargetBatch, roots: Tensor, max_depth: int, *, traced: bool
    ) -> _Verdict:
        """By operations on all requests' tensors, for every rule and every law."""
        constraints = [owner.constraint for owner in self._owners]
        masks = node_masks(batch, constraints, self._num_ids, self._device)
        candidates = gather_candidates(batch, self._device)
        if candidates is None:
            nowhere = ended((), (), roots, 0)
            sampling, context = self._parameters(roots, range(len(self._owners)), batch, masks)
            if sampling.all_greedy and not traced:  # nothing is left to draw
                tokens, bad = greedy_tokens(logits[: len(roots)], sampling, context)
                return _Verdict(nowhere, Draw(tokens, torch.zeros_like(bad)), bad)
            laws = target_law(logits, sampling, context, roots)
            residual = Residual.of(laws.law.weights)
            return _Verdict(nowhere, self._draw(residual, laws), laws.bad, laws, residual)
        if not traced and self._leaves_no_choice():
            followed = self._follow(logits, batch, candidates, max_depth, masks)
            last = Draw(followed.tokens, torch.zeros_like(followed.bad))
            return _Verdict(followed.end, last, followed.bad)
        uniforms = self._test_uniforms(candidates)
        decisions = Decisions(
            [owner.verifier for owner in self._owners],
            candidates,
            uniforms,
            lambda nodes, owners: self._laws(logits, nodes, owners, batch, masks),
        )
        decided = decisions.make(self._num_ids, max_depth, show_all=traced)
        trees = None
        if decided.law is not None:
            trees = Trees(candidates, decided.law, uniforms, decided.decision)
        end = walk(candidates.topology, decided.decision, max_depth)
        laws = self._laws(logits, end.final, range(len(self._owners)), batch, masks)
        residual = decisions.residual(laws.law, decided.decision, end)
        bad = laws.bad | decisions.bad_walks(decided.bad, end)
        return _Verdict(end, self._draw(residual, laws), bad, laws, residual, trees)

    def _walk(self, logits: Tensor, batch: TargetBatch, max_depth: int) -> Tensor | None:
        """All of the result, from our own kernels; None where they cannot tell it, or were not built."""
        kernels = kernels_for(self._device) if device_for(self._device).reads_freely else None
        if kernels is None or any(owner.traced or owner.constraint is not None for owner in self._owners):
            return None
        sampling = sampling_rows(
            [owner.sampling for owner in self._owners], self._num_ids, self._eos, self._device
        )
        if not can_walk([owner.verifier for owner in self._owners], sampling, batch.groups):
            return None
        tests = [owner.tests for owner in self._owners]
        return walk_all(kernels, logits, batch, sampling, tests, self._last_uniforms(), max_depth)

    def _last_uniforms(self) -> Tensor:
        return put([owner.final for owner in self._owners], self._device, torch.float64)

    def _wants_tokens_only(self) -> bool:
        return not any(
            owner.sampling.logprobs is not None or owner.wants_tops or owner.looks_ahead
            for owner in self._owners
        )

    def _leaves_no_choice(self) -> bool:
        """Whether all laws have one token: whatever an exact rule tests at a node, it can keep no other."""
        rules = [VERIFIERS[owner.verifier] for owner in self._owners]
        if not all(rule.exact and not isinstance(rule, TreeVerifier) for rule in rules):
            return False
        return all(owner.sampling.temperature == 0.0 for owner in self._owners)

    def _follow(
        self,
        logits: Tensor,
        batch: TargetBatch,
        candidates: Candidates,
        max_depth: int,
        masks: NodeMasks | None,
    ) -> Followed:
        def greedy_at(nodes: Tensor, owners: SequenceOf[int]) -> tuple[Tensor, Tensor]:
            parameters = self._parameters(nodes, owners, batch, masks)
            whole = len(nodes) == len(batch.node_owner)  # then they are in order, and nothing is copied
            return greedy_tokens(logits, *parameters, None if whole else nodes)

        return follow(candidates, batch.node_owner, len(self._owners), self._num_ids, max_depth, greedy_at)

    def _draw(self, residual: Residual, laws: NodeLaws) -> Draw:
        """Every request's last token. laws: the target's, drawn from where the residual sums to 0."""
        return draw_or_fall_back(residual, laws.law.weights, self._last_uniforms())

    def _trace(self, outcomes: list[Outcome], trees: Trees | None, ends: Ends) -> list[Outcome]:
        """The outcomes, with a trace where it was asked for and means something."""
        traced = []
        for row, (owner, outcome) in enumerate(zip(self._owners, outcomes, strict=True)):
            if owner.traced and not outcome.bad:
                position = len(owner.token_ids) - owner.num_prompt
                trace = trace_request(row, owner.verifier, position, outcome.tokens, trees, ends)
                outcome = msgspec.structs.replace(outcome, trace=trace)
            traced.append(outcome)
        return traced

    def _measure(self, logits: Tensor, roots: Tensor, end: Walk, kept: Tensor, last: Tensor) -> Tensor | None:
        """Log-probabilities along the walks, for those who ask; None: nobody does."""
        wanted = [owner.sampling.logprobs for owner in self._owners]
        if all(top is None for top in wanted):
            return None
        tokens = torch.cat([kept, torch.full_like(last[:, None], -1)], dim=1)
        tokens.scatter_(1, end.num_kept[:, None], last[:, None])
        return measure_walks(logits, torch.cat([roots[:, None], end.path], dim=1), tokens, wanted)

    def _read(self, *parts: Tensor | None) -> list[list[Any]]:
        """Bring tensors of numbers to the host, all in one transfer; token ids are exact in float64."""
        present = [part for part in parts if part is not None]
        if len(present) == 1:
            values = [present[0].tolist()]
        else:
            together = torch.cat([part.flatten().double() for part in present]).cpu()
            pieces = together.split([part.numel() for part in present])
            values = [piece.view(part.shape).tolist() for piece, part in zip(pieces, present, strict=True)]
        read = iter(values)
        return [[] if part is None else next(read) for part in parts]

    def _with_logprobs(self, outcomes: list[Outcome], rows: list[list[float]], depth: int) -> list[Outcome]:
        """rows: what `_measure` gave, of paths of at most ``depth`` nodes."""
        walks = iter(rows[i : i + depth + 1] for i in range(0, len(rows), depth + 1))
        scored = []
        for outcome, owner in zip(outcomes, self._owners, strict=True):
            if owner.sampling.logprobs is not None:
                scores = unpack_walk(outcome.tokens, next(walks), owner.sampling.logprobs)
                outcome = msgspec.structs.replace(outcome, logprobs=scores)
            scored.append(outcome)
        return scored

    def _tokens(self, batch: TargetBatch) -> Tensor:
        return batch.inputs.token_ids[batch.inputs.logits_index]

    def _laws(
        self,
        logits: Tensor,
        nodes: Tensor,
        owners: SequenceOf[int],
        batch: TargetBatch,
        masks: NodeMasks | None,
    ) -> NodeLaws:
        """Processed laws of ``nodes``, which belong to ``owners`` (host indices)."""
        return target_law(logits, *self._parameters(nodes, owners, batch, masks), nodes)

    def _parameters(
        self, nodes: Tensor, owners: SequenceOf[int], batch: TargetBatch, masks: NodeMasks | None
    ) -> tuple[SamplingRows, NodeContext | None]:
        """What the laws of ``nodes`` depend on beside their logits."""
        used = [self._owners[owner] for owner in owners]
        allowed = masks.at(nodes, owners) if masks is not None else None
        rows = sampling_rows(
            [owner.sampling for owner in used], self._num_ids, self._eos, self._device, allowed
        )
        context = None
        if rows.penalties is not None or rows.masked is not None or rows.bad_words:
            num_output = [len(owner.token_ids) - owner.num_prompt for owner in used]
            penalised = [owners[row] for row in (rows.penalties.rows if rows.penalties else ())]
            own_path = batch.path[nodes]
            context = NodeContext(
                own_path,
                put(num_output, self._device),
                self._seen(penalised) if penalised else None,
                recent_tokens([owner.output for owner in used], own_path, rows.bad_words)
                if rows.bad_words
                else None,
            )
        return rows, context

    def _seen(self, owners: SequenceOf[int]) -> SeenTokens:
        """What the requests behind some rows have seen, all of which are penalised."""
        seen, place = self._seen_by_owner
        return seen.rows(put([place[owner] for owner in owners], self._device))

    @cached_property
    def _seen_by_owner(self) -> tuple[SeenTokens, dict[int, int]]:
        """What each penalised request has seen, counted once a step, and its row."""
        owners = [i for i, owner in enumerate(self._owners) if is_penalised(owner.sampling)]
        used = [self._owners[owner] for owner in owners]
        seen = seen_tokens(
            [owner.token_ids[: owner.num_prompt] for owner in used],
            [owner.output for owner in used],
            self._device,
        )
        return seen, {owner: row for row, owner in enumerate(owners)}

    def _test_uniforms(self, candidates: Candidates) -> Tensor:
        uniforms = np.zeros(candidates.proposal.tokens.shape)
        for row, (owner, first, count) in enumerate(candidates.test_slots):
            uniforms[row, :count] = self._owners[owner].tests[first : first + count]
        return put(uniforms, self._device)


def _single_tokens(last: Draw, bad: Tensor) -> list[Outcome]:
    """Of requests without candidates, a token each."""
    rows = torch.stack([last.tokens, last.empty.long(), bad.long()], dim=1).tolist()
    return [Outcome((), (), (token,), bool(empty), bool(is_bad)) for token, empty, is_bad in rows]


def _unpacked(result: Tensor, roots: Tensor, depth: int) -> _Verdict:
    """Of what `VerifyKernels.walk` returns."""
    num_kept, tokens, empty, bad = result[:, :4].unbind(dim=1)
    slots, _, children = result[:, 4:].unflatten(1, (3, depth)).unbind(dim=1)
    path = torch.where(slots >= 0, slots + roots[:, None], -1)
    passed = torch.cat([roots[:, None], path], dim=1)
    final = passed.gather(1, num_kept[:, None])[:, 0]
    return _Verdict(Walk(path, children, num_kept, final), Draw(tokens, empty > 0), bad > 0)


def _outcome(values: list[float], depth: int) -> Outcome:
    row = [int(value) for value in values]
    num_kept, last, underflow, bad = row[:4]
    slots = row[4 : 4 + num_kept]
    tokens = row[4 + depth : 4 + depth + num_kept]
    children = row[4 + 2 * depth : 4 + 2 * depth + num_kept]
    return Outcome(tuple(slots), tuple(children), (*tokens, last), bool(underflow), bool(bad))
