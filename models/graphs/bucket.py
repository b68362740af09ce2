"""The sizes that steps are padded to, so that a few recordings serve all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resispec.models.base import StepInputs
from resispec.models.kv import FLEX
from resispec.models.visibility import tail_width

# Larger steps have enough work for a device to be busy while the host hands over the rest.
_TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_TAILS = (8, 16, 32, 64)
_REQUESTS = _LENGTHS = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = tuple(256 << power for power in range(6))
_GATHERED_ROWS = 1 << 16  # of one step, with padding: what is gathered takes memory


@dataclass(frozen=True, slots=True)
class Bucket:
    """tokens and tail as in `Visibility`; the rest as in `Grid`, 0 where attention needs none."""

    tokens: int
    tail: int
    requests: int = 0
    length: int = 0
    context: int = 0


def bucket_for(inputs: StepInputs, attention: str) -> Bucket | None:
    """The smallest that holds a step; None for one that is better run as it is."""
    segments = inputs.segments
    sizes = [(inputs.token_ids.shape[0], _TOKENS), (tail_width(segments), _TAILS)]
    if attention != FLEX:
        sizes += [
            (len(segments), _REQUESTS),
            (max(segment.length for segment in segments), _LENGTHS),
            (max(segment.kv_length for segment in segments), _CONTEXTS),
        ]
    found = [_at_least(size, steps) for size, steps in sizes]
    if None in found or inputs.logits_index.shape[0] > inputs.token_ids.shape[0]:
        return None
    bucket = Bucket(*(size for size in found if size is not None))
    return None if bucket.requests * bucket.context > _GATHERED_ROWS else bucket


def _at_least(size: int, steps: Sequence[int]) -> int | None:
    return next((step for step in steps if step >= size), None)
