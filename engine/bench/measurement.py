"""What one run of one contender gives: counts and times to add up, and the figures made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median


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
    drafts: int = 0  # trees verified
    draft_nodes: int = 0  # candidates in them
    gap_seconds: tuple[float, ...] = ()  # between one delivery to a request and its next, over all requests
    memory: int | None = None  # resident bytes
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds by phase, over all steps
    speedups: tuple[float, ...] = ()  # over plain decoding, as each request reported it

    @property
    def reported_speedup(self) -> float | None:
        """Mean over the requests."""
        return sum(self.speedups) / len(self.speedups) if self.speedups else None

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
        speedups=tuple(speedup for part in parts for speedup in part.speedups),
    )
