"""What one run of one contender gives: counts and times to add up, and the figures made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..budget.record import AcceptanceRecord


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times in seconds. A request's first token comes with its prompt; the others are decoded."""

    tokens: int  # generated
    seconds: float  # from the first request to the last token, prompts included
    first_token_seconds: tuple[float, ...]  # one per request
    decoded_tokens: int  # all but the first of each request
    deliveries: int  # steps that gave a request decoded tokens, over all requests
    decode_steps: int  # steps without a prompt in them
    decode_seconds: float  # of these steps
    decode_tokens: int = 0  # that they gave
    drafts: int = 0  # trees verified
    draft_nodes: int = 0  # candidates in them
    gap_seconds: tuple[float, ...] = ()  # between one delivery to a request and its next, over all requests
    memory: int | None = None  # resident bytes
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds by phase, over all steps
    generation_seconds: tuple[float, ...] = ()  # of each request, first token to last, in order of arrival
    speedups: tuple[float | None, ...] = ()  # of each over plain decoding, as it reported it itself
    record: AcceptanceRecord = field(default_factory=AcceptanceRecord)  # what was kept of drafted trees
    grammar_seconds: float = 0.0  # within the phases: masks and grammars
    full_tokens: int = 0  # that those steps gave that only decode and have as many requests as may be
    full_seconds: float = 0.0  # of these steps
    simulated: float | None = None  # tokens a second that the simulator says of the steps that only decode

    @property
    def simulated_over_measured(self) -> float | None:
        """Of the tokens a second that steps give which only decode."""
        if self.simulated is None or not self.decode_tokens:
            return None
        return self.simulated * self.decode_seconds / self.decode_tokens

    @property
    def reported_speedup(self) -> float | None:
        """Mean over the requests."""
        known = [speedup for speedup in self.speedups if speedup is not None]
        return sum(known) / len(known) if known else None

    def replayed(self, plain: Measurement) -> tuple[float, ...]:
        """The true speedup of each request that reported one: over itself in a run without speculation.

        Empty where the runs do not have the same requests.
        """
        count = len(self.generation_seconds)
        if len(plain.generation_seconds) != count or len(self.speedups) != count:
            return ()
        times = zip(plain.generation_seconds, self.generation_seconds, self.speedups, strict=True)
        return tuple(before / now for before, now, reported in times if reported is not None)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_seconds(self) -> float | None:
        """Of a step that only decodes."""
        return self.decode_seconds / self.decode_steps if self.decode_steps else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step gives each request in it: the mean acceptance length; 1 without a draft."""
        return self.decoded_tokens / self.deliveries if self.deliveries else None

    @property
    def full_speed(self) -> float | None:
        """Tokens a second while all places are filled and nobody's prompt is read."""
        return self.full_tokens / self.full_seconds if self.full_seconds else None

    @property
    def grammar_share(self) -> float | None:
        """Of the steps' time; None where no answer has a form."""
        return self.grammar_seconds / sum(self.phases.values()) if self.grammar_seconds else None

    @property
    def nodes_per_tree(self) -> float | None:
        return self.draft_nodes / self.drafts if self.drafts else None

    @property
    def first_token_median(self) -> float:
        return median(self.first_token_seconds)

    def gap(self, share: float) -> float | None:
        """The gap in seconds that this share of all gaps stays within; 1: the longest."""
        if not self.gap_seconds:
            return None
        ordered = sorted(self.gap_seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def pool(parts: Iterable[Measurement]) -> Measurement:
    """Several runs as one long run."""
    parts = tuple(parts)
    phases: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for name, seconds in part.phases.items():
            phases[name] += seconds
    return Measurement(
        tokens=sum(part.tokens for part in parts),
        seconds=sum(part.seconds for part in parts),
        first_token_seconds=tuple(seconds for part in parts for seconds in part.first_token_seconds),
        decoded_tokens=sum(part.decoded_tokens for part in parts),
        deliveries=sum(part.deliveries for part in parts),
        decode_steps=sum(part.decode_steps for part in parts),
        decode_seconds=sum(part.decode_seconds for part in parts),
        drafts=sum(part.drafts for part in parts),
        draft_nodes=sum(part.draft_nodes for part in parts),
        gap_seconds=tuple(seconds for part in parts for seconds in part.gap_seconds),
        memory=max((part.memory for part in parts if part.memory is not None), default=None),
        phases=dict(phases),
        generation_seconds=tuple(seconds for part in parts for seconds in part.generation_seconds),
        speedups=tuple(speedup for part in parts for speedup in part.speedups),
        decode_tokens=sum(part.decode_tokens for part in parts),
        record=AcceptanceRecord().merge(part.record for part in parts),
        grammar_seconds=sum(part.grammar_seconds for part in parts),
        full_tokens=sum(part.full_tokens for part in parts),
        full_seconds=sum(part.full_seconds for part in parts),
        simulated=_pool_simulated(parts),
    )


def _pool_simulated(parts: Sequence[Measurement]) -> float | None:
    """As if one run had given the tokens of all, each part at its own simulated pace."""
    paces = [(part.decode_tokens, part.simulated) for part in parts]
    seconds = [tokens / pace for tokens, pace in paces if pace is not None]
    if not paces or len(seconds) < len(paces) or not sum(seconds):
        return None
    return sum(tokens for tokens, _ in paces) / sum(seconds)
