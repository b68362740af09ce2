"""Half-grown trees of one shape: all requests in one tensor, a level at a time."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resispec.models.device import put

from ..grammar.base import PackedSet
from ..native import grow_kernel_for
from ..request import SamplingParams
from ..sampling.masks import TokenMask, token_mask
from ..tree import TreeShape
from ..verifiers.base import Proposal
from .base import DraftItem, GrownGroup, GrownLevel
from .children import Ranked, Truncation, propose_ranked, rank
from .head_policy import split_children
from .known import KnownNodes, known_nodes, put_first, put_slots_first
from .law import DraftLaw
from .native_level import Frontier, Ranking, grow_level
from .shared import first_equal, share_slots

_LEAST = -1e300  # a score above that of what does not exist
TAIL_TOKENS = 256  # tokens kept of a tail's law; the rule's cost grows with it, its gain hardly
# Tokens by which chosen children are scored beside their siblings: as good as all, and quicker.
_SCORED_TOKENS = 64
# Further tokens that are ranked, for those that are known already: as many for every node, since the order of
# equal ones depends on how many are asked for, and must not depend on a request's company.
_SPARE_TOKENS = 32


class FrontierInputs:
    """Inputs of a group's expanded nodes, flat, request by request."""

    def __init__(self, token_ids: Tensor, positions: Tensor, rows: Tensor, masks: list[Tensor]) -> None:
        self.token_ids = token_ids  # [G * w] int64
        self.positions = positions  # [G * w] int64
        self.rows = rows  # [G * w] int64
        self.masks = masks  # G of [w, slots so far] bool


@dataclass(frozen=True, slots=True)
class _KnownChildren:
    """Known children of a frontier."""

    slots: Tensor  # [G, w, C] int64; -1: none
    tokens: Tensor  # [G * w, C] int64; -1: none


class GrowingTrees:
    """The half-grown trees of one shape."""

    def __init__(self, shape: TreeShape, items: SequenceOf[DraftItem], device: torch.device) -> None:
        self.shape = shape
        self.members = tuple(i for i, item in enumerate(items) if item.shape == shape)
        self.items = [items[i] for i in self.members]
        self.size = size = len(self.members)
        trees = tuple(item.known for item in self.items)
        self.trees = trees
        self.num_slots = [1 + shape.num_nodes + tree.num_nodes for tree in trees]
        self.known: KnownNodes | None = None
        slots = 1 + shape.num_nodes
        if any(tree.num_nodes for tree in trees):
            self.known = known_nodes(trees, shape.num_nodes, device)
            self.tokens, self.visible = self.known.tokens, self.known.visible
            self.parents = self.known.parents
            slots = self.tokens.shape[1]
        else:
            self.tokens = torch.zeros(size, slots, dtype=torch.long, device=device)
            self.visible = torch.eye(slots, dtype=torch.bool, device=device).repeat(size, 1, 1)
            self.parents = torch.zeros_like(self.tokens)
        numbers = [(item.catch_up[-1], item.root, item.kv_start) for item in self.items]
        last, self.roots, self.kv_starts = put(tuple(zip(*numbers, strict=True)), device).unbind(0)
        self.tokens[:, 0] = last
        self.scores = torch.zeros(size, slots, dtype=torch.float64, device=device)
        self.frontier = torch.zeros(size, 1, dtype=torch.long, device=device)
        self.temperature = put([item.sampling.temperature for item in self.items], device, torch.float64)
        self.uniforms = put([item.uniforms for item in self.items], device, torch.float64)
        self.sampling = [item.sampling for item in self.items]
        self._kernel = grow_kernel_for(device)
        self._next: Frontier | None = None  # of the kernel
        self.levels: list[GrownLevel] = []
        self.logits: Tensor | None = None  # [G * w, Vd] of the frontier
        self.states: Tensor | None = None  # [G, S, H] of a head, where it has run

    def take(self, logits: Tensor, states: Tensor | None) -> None:
        """The draft's outputs at the frontier: [G * w, Vd] and, for a head, [G * w, H]."""
        self.logits = logits
        if states is not None:
            if self.states is None:
                self.states = states.new_zeros(*self.tokens.shape, states.shape[-1])
            index = self.frontier[..., None].expand(-1, -1, states.shape[-1])
            self.states.scatter_(1, index, states.view(self.size, -1, states.shape[-1]))

    def add_level(self, depth: int, num_ids: int, vocab_ids: Tensor | None) -> None:
        """Draw the children of the frontier and choose the next frontier among them."""
        level = self.shape.levels[depth]
        logits = self._restricted(num_ids, vocab_ids)
        law = None
        if any(item.traced for item in self.items):
            law = DraftLaw(logits, self.temperature.repeat_interleave(level.expand), vocab_ids)
        ranking = Ranking(
            num_law=TAIL_TOKENS if level.num_tail else 0,
            num_ranked=level.num_children + (TAIL_TOKENS if level.num_tail else _SCORED_TOKENS),
            num_spare=_SPARE_TOKENS
            if self.known is None
            else max(_SPARE_TOKENS, self.known.children.shape[2]),
        )
        if self._kernel is not None and logits.dtype == torch.float32:
            truncation = _truncation(self.sampling, 1, self.tokens.device)
            grown = grow_level(self._kernel, self, depth, logits, vocab_ids, truncation, ranking)
            children = grown.children.view(self.size, level.expand, -1)
            self.levels.append(GrownLevel(self.frontier, children, grown.proposal, law))
            self._next = grown.frontier
            if grown.frontier is not None:
                self.frontier = grown.frontier.slots
            return
        self._add_level(depth, logits, vocab_ids, ranking, law)

    def _add_level(
        self, depth: int, logits: Tensor, vocab_ids: Tensor | None, ranking: Ranking, law: DraftLaw | None
    ) -> None:
        """`add_level` by torch's operations."""
        level, first = self.shape.levels[depth], self.shape.first_slots[depth]
        repeated = self.temperature.repeat_interleave(level.expand)
        known = self._known_children()
        most = level.num_children
        ranked = rank(
            logits,
            repeated,
            ranking.num_ranked,
            vocab_ids,
            _truncation(self.sampling, level.expand, self.tokens.device),
            num_spare=ranking.num_spare,
        )
        new = ranked if known is None else ranked.without(known.tokens)
        proposal, log_probs = self._propose(depth, new, repeated)
        scores = self.scores.gather(1, self.frontier)[..., None] + log_probs.view(self.size, -1, most)
        slots = torch.arange(first, first + level.num_nodes, device=self.tokens.device)
        if level.shared:
            proposal, places = share_slots(proposal, scores.flatten(1), level.num_nodes)
            tokens = proposal.tokens.view(self.size, -1).gather(1, places)
            scores = scores.flatten(1).gather(1, places)
            parents = self.frontier.gather(1, places // most)
            children = torch.full_like(proposal.tokens, -1).view(self.size, -1)
            children = children.scatter(1, places, slots.expand_as(places)).view(self.size, -1, most)
        else:
            tokens, scores = proposal.tokens.view(self.size, -1), scores.flatten(1)
            parents = self.frontier.repeat_interleave(most, dim=1)
            children = slots.view(1, -1, most).expand(self.size, -1, -1)
            earliest = first_equal(proposal.tokens).view(self.size, -1, most)
            repeat = (earliest < torch.arange(most, device=earliest.device)).flatten(1)
            scores = scores.masked_fill(repeat | (tokens < 0), float("-inf"))
            if self.shape.shares_nodes:
                children = children.gather(2, earliest)
        # A slot that stayed empty (no tail left to draw from) is verified as some token, never kept.
        self.tokens[:, slots] = tokens.clamp_min(0)
        self.parents[:, slots] = parents
        own = self.visible[:, slots]
        inherited = self.visible.gather(1, parents[..., None].expand(-1, -1, own.shape[-1]))
        self.visible[:, slots] = own | inherited
        self.scores[:, slots] = scores
        candidates = slots.expand(self.size, -1)
        if known is not None:
            proposal = put_first(known.tokens, proposal)
            children = put_slots_first(known.slots, children)
            candidates, scores = self._join(known, ranked.log_probs(known.tokens), candidates, scores)
        self.levels.append(GrownLevel(self.frontier, children, proposal, law))
        if depth + 1 < self.shape.depth:
            # Of equal ones the first: which `topk` takes depends on how many there are, company's included.
            best = scores.argsort(dim=1, descending=True, stable=True)
            self.frontier = candidates.gather(1, best[:, : self.shape.levels[depth + 1].expand])

    def _propose(self, depth: int, ranked: Ranked, temperature: Tensor) -> tuple[Proposal, Tensor]:
        """The frontier's children and their log-probabilities, [G * w, K] each."""
        level, first = self.shape.levels[depth], self.shape.first_slots[depth]
        most = level.num_children
        num_tail_tokens = TAIL_TOKENS if level.num_tail else 0
        num_head, num_tail = split_children(level, ranked, most + num_tail_tokens)
        if level.shared:  # nothing is drawn
            uniforms = self.uniforms.new_zeros(len(num_head), most)
        else:
            uniforms = self.uniforms[:, first - 1 : first - 1 + level.num_nodes].reshape(-1, most)
        return propose_ranked(
            ranked,
            temperature,
            num_head=num_head,
            num_tail=num_tail,
            num_slots=most,
            num_tail_tokens=num_tail_tokens,
            uniforms=uniforms,
            max_tail=level.num_tail,
            drawing=self.shape.drawing,
        )

    def _restricted(self, num_ids: int, vocab_ids: Tensor | None) -> Tensor:
        """The frontier's logits, without what the requests' constraints exclude there."""
        assert self.logits is not None
        logits = self.logits if vocab_ids is not None else self.logits[:, :num_ids]
        mask = self._mask(num_ids)
        if mask is None:
            return logits
        forbidden = mask.forbidden if vocab_ids is None else mask.forbidden[:, vocab_ids]
        logits = logits.clone()
        TokenMask(mask.nodes, forbidden).apply_(logits)
        return logits

    def _mask(self, num_ids: int) -> TokenMask | None:
        """Of the frontier's rows. Reads tokens back to the host if a constraint goes by them."""
        width = self.frontier.shape[1]
        rows: list[int] = []
        packed: list[PackedSet] = []
        for tree, item in enumerate(self.items):
            constraint = item.constraint
            if constraint is None:
                continue
            rows += range(tree * width, (tree + 1) * width)
            packed += [constraint.allowed(path) for path in self._paths(tree, follow=constraint.follows_path)]
        if not rows:
            return None
        sets = put(np.stack(packed), self.tokens.device)
        return token_mask(rows, sets, num_ids)

    def _paths(self, tree: int, *, follow: bool) -> list[tuple[int, ...]]:
        """Candidates on the way to each node of the frontier, itself included; ``()`` unless ``follow``."""
        if not follow or not self.levels:
            return [()] * self.frontier.shape[1]
        tokens, parents = self.tokens[tree].tolist(), self.parents[tree].tolist()
        paths: list[tuple[int, ...]] = []
        for slot in self.frontier[tree].tolist():
            path: list[int] = []
            while slot:
                path.append(tokens[slot])
                slot = parents[slot]
            paths.append(tuple(reversed(path)))
        return paths

    def _known_children(self) -> _KnownChildren | None:
        """Those of the frontier."""
        if self.known is None:
            return None
        slots = self.known.children_of(self.frontier)
        tokens = self.tokens.gather(1, slots.clamp_min(0).flatten(1)).view_as(slots)
        return _KnownChildren(slots, torch.where(slots < 0, -1, tokens).flatten(0, 1))

    def _join(
        self, known: _KnownChildren, log_probs: Tensor, drafted: Tensor, scores: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Candidates for the next frontier and their scores, [G, w * (K + C)] each: known ones as well.

        log_probs: [G * w, C] float64, of the known ones in the draft's law. Either the draft or the source
        may know a token to be likely, so the more hopeful of both counts.
        """
        assert self.known is not None
        slots = known.slots.flatten(1)
        nodes = slots.clamp_min(0)
        chances = torch.maximum(log_probs.view(self.size, -1), self.known.log_chances.gather(1, nodes))
        parents = self.frontier.repeat_interleave(known.slots.shape[2], dim=1)
        own = self.scores.gather(1, parents) + chances
        self.scores.scatter_(1, nodes, torch.where(slots < 0, self.scores.gather(1, nodes), own))
        # A drafted slot that stayed empty may be expanded in vain, but what does not exist may not.
        own = torch.where(slots < 0, -torch.inf, own.clamp(min=_LEAST))
        return torch.cat([drafted, nodes], dim=1), torch.cat([scores.clamp(min=_LEAST), own], dim=1)

    def frontier_inputs(self) -> FrontierInputs:
        depth = len(self.levels)
        width = self.frontier.shape[1]
        slots = self.tokens.shape[1] if self.known is not None else self.shape.first_slots[depth]
        if self._next is not None:
            visible = self._next.visible
            token_ids, positions, rows = self._next.inputs.unbind(0)
        else:
            visible = self.visible.gather(1, self.frontier[..., None].expand(-1, -1, self.visible.shape[-1]))
            token_ids = self.tokens.gather(1, self.frontier).flatten()
            positions = (self.roots + depth).repeat_interleave(width)
            rows = (self.kv_starts[:, None] + self.roots[:, None] + self.frontier).flatten()
        # A request has rows for its own slots only, which may be fewer than the group's.
        masks = [visible[i, :, : min(slots, own)] for i, own in enumerate(self.num_slots)]
        return FrontierInputs(token_ids, positions, rows, masks)

    def parent_hidden(self) -> Tensor:
        """A head's own states of the frontier's parents: [G * w, H]."""
        assert self.states is not None
        parents = self.parents.gather(1, self.frontier)
        index = parents[..., None].expand(-1, -1, self.states.shape[-1])
        return self.states.gather(1, index).flatten(0, 1)

    def finish(self) -> GrownGroup:
        return GrownGroup(self.shape, self.members, self.tokens, self.visible, tuple(self.levels), self.trees)


def _truncation(sampling: SequenceOf[SamplingParams], width: int, device: torch.device) -> Truncation | None:
    """The requests' own truncation, ``width`` rows each: what the target excludes is drafted in vain."""
    if all(params.top_k == 0 and params.top_p == 1 and params.min_p == 0 for params in sampling):
        return None
    repeated = [params for params in sampling for _ in range(width)]
    return Truncation(
        top_k=put([params.top_k for params in repeated], device),
        top_p=put([params.top_p for params in repeated], device, torch.float64),
        min_p=put([params.min_p for params in repeated], device, torch.float64),
    )
