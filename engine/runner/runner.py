"""Runs a plan: row copies, drafting, the target's forward, verification; gives back plain values."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from resispec.models.base import StepModel
from resispec.models.device import device_for, put
from resispec.models.kv import KVMemory
from resispec.models.medusa import MedusaHeads

from ..cost.feed import feed_draft, feed_target
from ..cost.prefill import PrefillCosts
from ..cost.table import CostTable
from ..known_tree import NOTHING_KNOWN
from ..kv.extents import Extent, Move
from ..outputs import TokenLogprobs
from ..proposers.base import DraftItem, GrownGroup, Proposer
from ..proposers.known import KnownOnly, grow_known
from ..sampling.uniforms import Stream, UniformSource
from ..scheduler import PlannedSequence
from ..sequence import Sequence
from .ahead import Lookahead
from .batch import build_target_batch
from .logprobs import prompt_logprobs
from .verify import Outcome, Owner, Verification

_NONE = np.empty(0)  # uniforms


@dataclass(frozen=True, slots=True)
class RunResult:
    """outcomes: for each item given, None where the step did not reach the last token.

    prompt_logprobs: by item, of the prompt tokens scored in this step.
    """

    outcomes: tuple[Outcome | None, ...]
    num_rows: int  # of the target's forward
    draft_seconds: float
    verify_seconds: float  # the target's forward
    sample_seconds: float
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: SequenceOf[RunResult]) -> RunResult:
        """Of items that were run one by one."""
        return cls(
            tuple(part.outcomes[0] for part in parts),
            sum(part.num_rows for part in parts),
            sum(part.draft_seconds for part in parts),
            sum(part.verify_seconds for part in parts),
            sum(part.sample_seconds for part in parts),
            {index: part.prompt_logprobs[0] for index, part in enumerate(parts) if part.prompt_logprobs},
        )


class Runner:
    """Holds the models and their KV memories. One step at a time, on one thread."""

    def __init__(
        self,
        target: StepModel,
        memories: SequenceOf[KVMemory],
        proposer: Proposer | None,
        costs: CostTable,
        prefill: PrefillCosts,
        *,
        keeps_draft_rows: bool,
        num_ids: int,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
        medusa: MedusaHeads | None = None,
    ) -> None:
        """memories: of the target and, if there is one, the draft, row for row the same.

        costs, prefill: learn from every step.
        keeps_draft_rows: the draft's rows of kept candidates are worth keeping. A head's are not: it
        ran them on its own guesses of the target's states, and runs them again on the true ones.
        num_ids: token ids from here on do not exist.
        medusa: heads whose say requests may want.
        """
        self._target = target
        self._memories = tuple(memories)
        self._proposer = proposer
        self.costs = costs
        self._prefill = prefill
        self.keeps_draft_rows = keeps_draft_rows
        self._num_ids = num_ids
        self._eos = eos_token_ids
        self._device = device
        self._uniforms = UniformSource()
        self._medusa = medusa

    def apply(self, moves: SequenceOf[Move]) -> None:
        """Copy runs of rows, in order, in all memories."""
        for move in moves:
            for memory in self._memories:
                memory.copy_run(move.source, move.destination, move.length)

    @torch.inference_mode()
    def clear(self, extent: Extent) -> None:
        """Zero rows in all memories: a NaN left there would reach, masked or not, who gets them next."""
        for memory in self._memories:
            memory.clear_run(extent.start, extent.length)

    @torch.inference_mode()
    def run(self, items: SequenceOf[PlannedSequence]) -> RunResult:
        """Changes no sequence, so a step that failed can be run again."""
        clock = device_for(self._device).clock()
        clock.mark()
        drafts, groups, group_items = self._draft(items)
        clock.mark()
        batch = build_target_batch(items, groups, group_items, self._device)
        outputs = self._target.forward(batch.inputs)
        logits = outputs.logits
        clock.mark()
        outcomes: list[Outcome | None] = [None] * len(items)
        if batch.owners:
            owners = self._owners([items[index] for index in batch.owners])
            depth = max((item.tree.depth for item in items if item.tree is not None), default=0)
            verification = Verification(owners, self._num_ids, self._eos, self._device)
            ahead = Lookahead(self._medusa, outputs.hidden) if self._medusa is not None else None
            verified = verification.run(logits, batch, depth, ahead)
            for index, outcome in zip(batch.owners, verified, strict=True):
                outcomes[index] = outcome
        scored = prompt_logprobs(logits[:, : self._num_ids], items, len(batch.node_owner))
        clock.mark()
        draft_seconds, verify_seconds, sample_seconds = clock.seconds()
        feed_target(self.costs, self._prefill, batch.inputs.segments, verify_seconds)
        feed_draft(self.costs, drafts, draft_seconds)
        return RunResult(
            tuple(outcomes),
            batch.inputs.token_ids.shape[0],
            draft_seconds,
            verify_seconds,
            sample_seconds,
            scored,
        )

    def keep(self, kept: SequenceOf[tuple[PlannedSequence, tuple[int, ...]]]) -> None:
        """Close ranks: move the rows of kept candidates right behind their roots.

        kept: planned sequences with the slots kept of their trees, before their rows have moved on.
        """
        source: list[int] = []
        destination: list[int] = []
        for item, slots in kept:
            assert item.sequence.entry is not None
            root = item.sequence.entry.extent.start + item.length - 1
            for place, slot in enumerate(slots, start=1):
                if slot != place:
                    source.append(root + slot)
                    destination.append(root + place)
        if not source:
            return
        with torch.inference_mode():  # not before: entering it takes as long as all of this
            rows = put([source, destination], self._device)
            for memory in self._memories if self.keeps_draft_rows else self._memories[:1]:
                memory.move_rows(rows[0], rows[1])

    def _draft(
        self, items: SequenceOf[PlannedSequence]
    ) -> tuple[list[DraftItem], tuple[GrownGroup, ...], list[list[int]]]:
        """Grow the trees: what the draft ran for, the groups, and the item of each tree of a group."""
        indices = [index for index, item in enumerate(items) if item.tree is not None or item.catch_up]
        blocks = self._blocks(
            [items[index] for index in indices],
            Stream.DRAFT,
            [shape.num_nodes if (shape := items[index].shape) else 0 for index in indices],
        )
        drafting: list[tuple[int, DraftItem]] = []
        known: list[KnownOnly] = []
        for index, uniforms in zip(indices, blocks, strict=True):
            item = items[index]
            if item.shape is not None or item.catch_up:
                drafting.append((index, _draft_item(item, tuple(uniforms.tolist()))))
            if item.shape is None and item.tree is not None:
                known.append(KnownOnly(index, item.sequence.token_ids[-1], item.tree.known))
        drafts = [item for _, item in drafting]
        groups: tuple[GrownGroup, ...] = ()
        if self._proposer is not None and drafts:
            groups = self._proposer.grow(drafts)
        members = [[drafting[member][0] for member in group.members] for group in groups]
        if known:
            group = grow_known(known, self._device)
            groups, members = (*groups, group), [*members, list(group.members)]
        return drafts, groups, members

    def _owners(self, items: SequenceOf[PlannedSequence]) -> list[Owner]:
        tests = self._blocks(
            items, Stream.VERIFY, [item.tree.num_tests if item.tree else 0 for item in items]
        )
        return [
            Owner(
                item.sequence.request.sampling,
                item.sequence.verifier,
                item.sequence.token_ids,
                item.sequence.num_prompt,
                block,
                self._final(item.sequence),
                item.sequence.request.speculation.trace,
                item.sequence.constraint,
                item.sequence.sources.wants_tops,
                item.sequence.sources.looks_ahead,
            )
            for item, block in zip(items, tests, strict=True)
        ]

    def _blocks(
        self, items: SequenceOf[PlannedSequence], stream: Stream, counts: SequenceOf[int]
    ) -> list[NDArray[np.float64]]:
        """So many fresh uniforms for every item."""
        return [
            self._uniforms.block([item.sequence.key], stream, [len(item.sequence.token_ids)], count)[0]
            if count
            else _NONE
            for item, count in zip(items, counts, strict=True)
        ]

    def _final(self, sequence: Sequence) -> float:
        """The uniform of the last token. Where one token has all the weight, any number draws it."""
        if sequence.request.sampling.temperature == 0:
            return 0.0
        return self._uniforms.first(sequence.key, Stream.FINAL, len(sequence.token_ids))


def _draft_item(item: PlannedSequence, uniforms: tuple[float, ...]) -> DraftItem:
    sequence = item.sequence
    assert sequence.entry is not None
    # Without a tree of its own it only catches up, with what the target has run at the most.
    stop = len(sequence.token_ids) if item.shape else sequence.draft_rows + item.catch_up
    return DraftItem(
        tuple(sequence.token_ids[sequence.draft_rows : stop]),
        sequence.draft_rows,
        sequence.entry.extent.start,
        item.shape,
        sequence.request.sampling,
        uniforms,
        item.tree.known if item.tree else NOTHING_KNOWN,
        sequence.request.speculation.trace,
        sequence.constraint,
    )
