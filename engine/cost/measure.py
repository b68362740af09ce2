"""Times a pair on its own KV memory before it serves: two seconds, and no more than that by a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from resispec.models.base import Segment, StepInputs, StepModel
from resispec.models.device import device_for

from ..proposers.base import DraftItem, Proposer
from ..request import SamplingParams
from ..tree import plan_shape
from .surface import Surface
from .table import PLAIN, CostTable, LearnedCosts

_BUDGET = 1.5  # seconds for the target, and a third of it for the draft; the rest is extrapolated
_SHALLOW, _DEEP = 256, 2048  # KV rows, all requests together
# Tokens and whether they attend to many rows, the most telling first: a large model gets no further.
_TARGET_ORDER = (
    *((1, False), (8, False), (32, False), (1, True), (4, False), (16, False), (64, False)),
    *((2, False), (16, True), (64, True), (256, False)),
)
_DRAFT_ORDER = ((1, False), (8, False), (16, False), (1, True), (2, False), (4, False), (16, True))
_TREE = 4  # tokens of one request in a measured forward: about what a small tree has
_RUNS = 3  # of each point, of which the quickest counts: what is left is the machine's own noise
_BATCH = 8  # requests of which one has a candidate, or none: forwards that differ by more than their tokens
_NEAR = 1.5  # times that whole steps may differ from the sum of their parts
_UNKNOWN_GROWTH = 1 / 32  # of the cost of one token, for each more, where only one size was measured

Points = Mapping[tuple[int, bool], float]  # seconds by tokens and whether the context was deep
Prepare = Callable[[int, int], Callable[[], object] | None]  # from tokens and context; None: does not fit


@dataclass(frozen=True, slots=True)
class Limits:
    """What can be asked of a pair, and so has to be in its table."""

    num_rows: int  # KV rows there are
    max_tokens: int  # of one forward of the target
    max_requests: int
    target_positions: int  # that the model can encode
    draft_positions: int  # 0: no draft

    @property
    def rows_used(self) -> int:
        """Rows, from the first on, that measuring writes to."""
        return max(_DEEP, _SHALLOW)


def measure_costs(
    target: StepModel, proposer: Proposer | None, limits: Limits, device: torch.device
) -> CostTable:
    """The table of a pair. Writes to the first KV rows of both memories, which nobody may own yet."""

    def run_target(tokens: int, context: int) -> Callable[[], object] | None:
        if tokens > limits.max_tokens:
            return None
        inputs = _target_inputs(tokens, context, limits.target_positions, device)
        return None if inputs is None else lambda: target.forward(inputs)

    def run_draft(tokens: int, context: int) -> Callable[[], object] | None:
        start = context // tokens - 2
        if proposer is None or tokens > limits.max_requests or not 0 <= start <= limits.draft_positions - 2:
            return None
        items = _draft_items(tokens, start)
        return lambda: proposer.grow(items)

    def surface(
        order: Iterable[tuple[int, bool]], prepare: Prepare, positions: int, most_tokens: int, budget: float
    ) -> Surface:
        shallow = min(_SHALLOW, limits.num_rows, positions)
        deep = _DEEP if limits.num_rows >= _DEEP else None
        points = _time(order, prepare, shallow, deep, budget, device)
        return _surface(points, most_tokens, shallow, limits.num_rows)

    table = CostTable(
        surface(_TARGET_ORDER, run_target, limits.target_positions, limits.max_tokens, _BUDGET),
        None
        if proposer is None
        else surface(_DRAFT_ORDER, run_draft, limits.draft_positions, limits.max_requests, _BUDGET / 3),
    )
    table.learned = _whole_batches(target, table, limits, device)
    return table


def _whole_batches(
    target: StepModel, table: CostTable, limits: Limits, device: torch.device
) -> LearnedCosts | None:
    """What to expect of steps of a batch before there were any; None where there is no room for one.

    A forward over single tokens takes less than the table's, whose requests have several tokens each, and
    one candidate among them brings that to an end.
    """
    factors = [(PLAIN, 1, 1.0), (0, 1, 1.0)]
    for kind, sizes in ((PLAIN, [1] * _BATCH), (0, [2] + [1] * (_BATCH - 1))):
        inputs = _inputs(sizes, _SHALLOW, limits.target_positions, device)
        if inputs is None or limits.num_rows < _SHALLOW or limits.max_requests < _BATCH:
            return None
        timed = _time([(1, False)], partial(_forward, target, inputs), 1, None, _BUDGET, device)
        factor = timed[1, False] / table.target_seconds(sum(sizes), _SHALLOW)
        factors.append((kind, _BATCH.bit_length(), min(max(factor, 1 / _NEAR), _NEAR)))
    return LearnedCosts(law=0.02, trees=0.02, factors=tuple(factors))


def measure_pace(target: StepModel, table: CostTable, device: torch.device) -> None:
    """Bring a table that was measured another day to today's speed, by one small forward."""
    inputs = _target_inputs(1, _TREE, _TREE, device)
    assert inputs is not None
    timed = _time([(1, False)], lambda *_: lambda: target.forward(inputs), _TREE, None, _BUDGET, device)
    table.set_pace(1, _TREE, timed[1, False])


@torch.inference_mode()
def _time(
    order: Iterable[tuple[int, bool]],
    prepare: Prepare,
    shallow: int,
    deep: int | None,
    budget: float,
    device: torch.device,
) -> dict[tuple[int, bool], float]:
    """Seconds of each point that there is time for; at least of the first that can be run."""
    deadline = time.perf_counter() + budget
    timed: dict[tuple[int, bool], float] = {}
    for tokens, is_deep in order:
        context = deep if is_deep else shallow
        if timed and time.perf_counter() > deadline:
            break
        if context is None or (run := prepare(tokens, context)) is None:
            continue
        seconds = []
        if device_for(device).generates_kernels:
            deadline += _seconds(run, device)  # what is compiled and recorded once is no cost of a step
        for _ in range(1 + _RUNS):  # the first one warms up
            seconds.append(_seconds(run, device))
            if time.perf_counter() > deadline:
                break
        timed[tokens, is_deep] = min(seconds[1:] or seconds)
    return timed


def _forward(target: StepModel, inputs: StepInputs, *_: int) -> Callable[[], object]:
    """A `Prepare` of one forward, whatever is asked for."""
    return partial(target.forward, inputs)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    there = device_for(device)
    there.synchronize()  # what was handed over before is not its cost
    began = time.perf_counter()
    run()
    there.synchronize()
    return time.perf_counter() - began


def _target_inputs(tokens: int, context: int, max_positions: int, device: torch.device) -> StepInputs | None:
    """Requests of a few tokens each that attend to ``context`` rows together; None where they do not fit."""
    sizes = [_TREE] * (tokens // _TREE) + ([tokens % _TREE] if tokens % _TREE else [])
    return _inputs(sizes, context, max_positions, device)


def _inputs(
    sizes: Sequence[int], context: int, max_positions: int, device: torch.device
) -> StepInputs | None:
    """One forward over so many tokens of each request; as above."""
    span = context // len(sizes)
    if span < _TREE or span > max_positions:
        return None
    positions: list[int] = []
    rows: list[int] = []
    segments: list[Segment] = []
    for number, size in enumerate(sizes):
        segments.append(Segment(len(positions), size, number * span, span))
        positions += range(span - size, span)
        rows += range((number + 1) * span - size, (number + 1) * span)
    return StepInputs(
        token_ids=torch.zeros(len(rows), dtype=torch.long, device=device),
        positions=torch.tensor(positions, device=device),
        rows=torch.tensor(rows, device=device),
        segments=tuple(segments),
        logits_index=torch.arange(len(rows), device=device),
    )


def _draft_items(requests: int, start: int) -> Sequence[DraftItem]:
    """One level: each request's last token is run, and gets a child."""
    shape = plan_shape(1, 1, greedy=False)
    uniforms = (0.5,) * shape.num_nodes
    return [
        DraftItem((0,), start, number * (start + 2), shape, SamplingParams(), uniforms)
        for number in range(requests)
    ]


def _surface(points: Points, max_tokens: int, shallow: int, num_rows: int) -> Surface:
    """A grid over all that can be asked; what was not measured goes on straight from what was."""
    tokens, context = _rising(1, max_tokens, 2), _rising(shallow, num_rows, 4)
    at_shallow = _along(tokens, {t: s for (t, deep), s in points.items() if not deep}, _UNKNOWN_GROWTH)
    slopes = {t: (s - points[t, False]) / (_DEEP - shallow) for (t, deep), s in points.items() if deep}
    slope = np.maximum(_along(tokens, slopes, 0.0), 0.0) if slopes else np.zeros(len(tokens))
    seconds = at_shallow[:, None] + slope[:, None] * (np.array(context) - shallow)
    return Surface(tokens, context, seconds.tolist())


def _along(tokens: Sequence[int], points: Mapping[int, float], growth: float) -> NDArray[np.float64]:
    """Values at ``tokens``, on straight lines through the points."""
    known = sorted(points)
    values = [points[size] for size in known]
    wanted = np.array(tokens, dtype=float)
    result: NDArray[np.float64] = np.interp(wanted, known, values)
    last = known[-1]
    rise = growth * values[0] / last
    if len(known) > 1:
        rise = (values[-1] - values[-2]) / (last - known[-2])
    beyond: NDArray[np.float64] = max(rise, 0.0) * np.maximum(wanted - last, 0.0)
    return result + beyond


def _rising(first: int, last: int, factor: int) -> tuple[int, ...]:
    """From ``first`` by ``factor`` to ``last``, which is the last."""
    knots = [first]
    while knots[-1] * factor < last:
        knots.append(knots[-1] * factor)
    return tuple(knots) if knots[-1] == last else (*knots, last)
