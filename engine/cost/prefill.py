"""What chunks of prompts add to a step: their rows as the table says, their attention as steps showed it.

The table knows a forward by its tokens and the KV rows it attends to, all requests together, and is
measured with a few tokens a request. A chunk attends to its context once for each of its tokens::

    seconds of a forward = table(tokens, rows) + b * sum over chunks of (token, row it sees) pairs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resispec.models.base import Segment

from .table import CostTable

LEAST_CHUNK = 16  # tokens: fewer hardly cost less, and chunks of a few sizes reuse the kernels made for them
_KEPT = 0.95  # of the weight of what was seen before, a step with chunks
_FIRST_ERROR = 0.25  # before a step has shown anything: attention costs nothing yet
_NEWEST = 0.1  # weight of the newest step's error
_MOST = 2.0  # times what was expected that one step may count for: a stall says little of the next


def num_pairs(length: int, context: int) -> float:
    """(token, row it sees) pairs of a chunk of ``length`` tokens that ends at row ``context``."""
    return length * (context - (length - 1) / 2)


def prompt_pairs(segments: Sequence[Segment]) -> float:
    """Of all chunks of a step. Trees and single tokens are none: the table was measured with them."""
    chunks = (segment for segment in segments if segment.mask is None and segment.length > 1)
    return sum(num_pairs(chunk.length, chunk.kv_length) for chunk in chunks)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step holds before a chunk joins it."""

    rows: int
    context: int  # KV rows attended to, all requests together


class PrefillCosts:
    """Learns ``b`` from steps with chunks: least squares through the origin, the newest counting most."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._products = 0.0  # of seconds and pairs, summed
        self._squares = 0.0  # of pairs
        self.usual_error = _FIRST_ERROR  # by which share of what was expected a step is off, up or down

    @property
    def seconds_per_pair(self) -> float:
        """``b``; 0 until a step has shown more."""
        return max(0.0, self._products / self._squares) if self._squares else 0.0

    def chunk_seconds(self, length: int, start: int, load: StepLoad) -> float:
        """What a chunk of ``length`` tokens behind ``start`` others adds to a step."""
        context = start + length
        more = self._table.target_seconds(load.rows + length, load.context + context)
        if load.rows:
            more -= self._table.target_seconds(load.rows, load.context)
        return more + self.seconds_per_pair * num_pairs(length, context)

    def fitting(self, most: int, start: int, load: StepLoad, seconds: float) -> int:
        """Tokens of the largest chunk within ``seconds``: ``most`` at most, `LEAST_CHUNK` or all at least."""
        low, high = 1, max(1, most // LEAST_CHUNK)  # in units of the least chunk
        while low < high:
            middle = (low + high + 1) // 2
            if self.chunk_seconds(middle * LEAST_CHUNK, start, load) <= seconds:
                low = middle
            else:
                high = middle - 1
        # A rest smaller than the least chunk would cost a step of its own.
        return most if most - low * LEAST_CHUNK < LEAST_CHUNK else low * LEAST_CHUNK

    def observe(self, segments: Sequence[Segment], seconds: float) -> float:
        """A forward of the target took so long; returns what of it the table accounts for."""
        pairs = prompt_pairs(segments)
        if not pairs:
            return seconds
        tokens = sum(segment.length for segment in segments)
        rows = self._table.target_seconds(tokens, sum(segment.kv_length for segment in segments))
        expected = rows + self.seconds_per_pair * pairs
        seconds = min(seconds, _MOST * expected)
        self.usual_error += _NEWEST * (abs(seconds / expected - 1.0) - self.usual_error)
        self._products = _KEPT * self._products + (seconds - rows) * pairs
        self._squares = _KEPT * self._squares + pairs * pairs
        return max(0.0, seconds - self.seconds_per_pair * pairs)
