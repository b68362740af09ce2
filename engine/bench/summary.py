"""From measurements to rows: medians over the repeats, and ratios within each repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from .contenders import PLAIN, TRANSFORMERS
from .measurement import Measurement, pool

ALL_PROMPTS = "all"
_NEAR = 0.1  # how far a reported speedup may be off
BASELINES = (PLAIN, TRANSFORMERS)

Runs = Mapping[int, Measurement]  # by repeat


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a contender with a kind of work."""

    contender: str
    prompts: str
    temperature: float
    batch: int
    rate: float | None = None  # requests a second, where they come at a rate

    @property
    def load(self) -> str:
        """What a table says: requests in flight, or their rate."""
        return str(self.batch) if self.rate is None else f"{self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the repeats."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One case's figures. Those that could not be had are None; ``error`` says why if all are."""

    case: Case
    repeats: int = 0
    tokens_per_second: Spread | None = None  # generated tokens over all of the time, prompts included
    step_ms: Spread | None = None  # a step that only decodes
    tokens_per_step: Spread | None = None  # per request: the mean acceptance length
    nodes_per_tree: Spread | None = None
    first_token_ms: Spread | None = None  # the median request's
    gap_ms: Spread | None = None  # between deliveries to one request: the median one
    gap_p99_ms: Spread | None = None
    gap_max_ms: Spread | None = None
    memory_mib: Spread | None = None  # resident
    reported: Spread | None = None  # speedup over plain decoding, as the requests reported it
    replayed: Spread | None = None  # as it was: the mean over the same requests without speculation
    well_reported: Spread | None = None  # share of the requests that were not off by more than a tenth
    grammar_percent: Spread | None = None  # of the steps' time: masks and grammars
    simulated: Spread | None = None  # the simulator's tokens/s over the measured ones, where only decoding
    over: dict[str, Spread] = field(default_factory=dict)  # tokens/s over a baseline's at the same load
    decoding: Spread | None = None  # over plain, of answers with forms, while all places are filled
    phases: dict[str, float] = field(default_factory=dict)  # shares of the steps' time, adding up to 1
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of throughputs over all prompts and temperatures."""

    name: str
    value: Spread


def summarize(
    cases: Sequence[Case],
    runs: Mapping[Case, Runs],
    errors: Mapping[Case, str],
    baselines: Sequence[str] = BASELINES,
) -> tuple[Row, ...]:
    """A row per case, then one per group of cases that differ in their prompts only."""
    pooled: dict[Case, Runs] = {}
    for case, members in _groups(cases, lambda c: replace(c, prompts=ALL_PROMPTS)):
        if len(members) > 1:
            pooled[case] = _pool(members, runs)
    every = {**runs, **pooled}
    rows = [_row(case, every, errors.get(case), baselines) for case in cases]
    return (*rows, *(_row(case, every, None, baselines) for case in pooled if pooled[case]))


def headline_ratios(
    cases: Sequence[Case], runs: Mapping[Case, Runs], baselines: Sequence[str] = BASELINES
) -> tuple[Ratio, ...]:
    """What the whole run says: batching, then everybody over each baseline that is not named before it."""
    whole = {
        (group.contender, group.batch): _pool(members, runs)
        for group, members in _groups(
            [case for case in cases if case.rate is None],
            lambda c: Case(c.contender, ALL_PROMPTS, 0.0, c.batch),
        )
    }
    wanted = [
        (f"{PLAIN} at batch {batch} over {PLAIN} at batch 1", of, whole.get((PLAIN, 1), {}))
        for (name, batch), of in whole.items()
        if name == PLAIN and batch != 1
    ]
    rank = {name: place for place, name in enumerate(baselines)}
    wanted += [
        (f"{name} over {baseline} at batch {batch}", of, whole.get((baseline, batch), {}))
        for (name, batch), of in whole.items()
        for baseline in baselines
        if name != baseline and rank.get(name, -1) < rank[baseline]
    ]
    ratios = [(name, _ratio(of, over)) for name, of, over in wanted]
    return tuple(Ratio(name, value) for name, value in ratios if value is not None)


def _row(case: Case, runs: Mapping[Case, Runs], error: str | None, baselines: Sequence[str]) -> Row:
    own = runs.get(case, {})
    if error is not None or not own:
        return Row(case, error=error or "interrupted before it ran")
    over = {name: _ratio(own, _baseline_runs(case, name, runs)) for name in baselines}
    values = own.values()
    plain = _baseline_runs(case, PLAIN, runs)
    phases = pool(values).phases
    total = sum(phases.values())
    return Row(
        case,
        repeats=len(own),
        tokens_per_second=spread(run.tokens_per_second for run in values),
        step_ms=spread(_ms(run.step_seconds) for run in values),
        tokens_per_step=spread(run.tokens_per_step for run in values),
        nodes_per_tree=spread(run.nodes_per_tree for run in values),
        first_token_ms=spread(run.first_token_median * 1e3 for run in values),
        gap_ms=spread(_ms(run.gap(0.5)) for run in values),
        gap_p99_ms=spread(_ms(run.gap(0.99)) for run in values),
        gap_max_ms=spread(_ms(run.gap(1)) for run in values),
        memory_mib=spread(run.memory and run.memory / 2**20 for run in values),
        reported=spread(run.reported_speedup for run in values),
        replayed=spread(_replayed(own, plain)),
        well_reported=spread(_well_reported(own, plain)),
        grammar_percent=spread(run.grammar_share and run.grammar_share * 100 for run in values),
        simulated=spread(run.simulated_over_measured for run in values),
        decoding=_decoding_ratio(own, plain),
        over={name: ratio for name, ratio in over.items() if ratio is not None},
        phases={name: seconds / total for name, seconds in phases.items()},
    )


def _replayed(own: Runs, plain: Runs) -> Iterable[float | None]:
    for repeat in own:
        true = own[repeat].replayed(plain[repeat]) if repeat in plain else ()
        yield sum(true) / len(true) if true else None


def _well_reported(own: Runs, plain: Runs) -> Iterable[float | None]:
    for repeat in own:
        true = own[repeat].replayed(plain[repeat]) if repeat in plain else ()
        reported = [speedup for speedup in own[repeat].speedups if speedup is not None]
        if true:
            near = [abs(said / was - 1) <= _NEAR for said, was in zip(reported, true, strict=True)]
            yield sum(near) / len(near)


def _baseline_runs(case: Case, name: str, runs: Mapping[Case, Runs]) -> Runs:
    """At the same load; of one that is measured alone only (transformers), alone."""
    same = runs.get(replace(case, contender=name), {})
    if same or name != TRANSFORMERS:
        return same
    return runs.get(replace(case, contender=name, batch=1), {})


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _groups(cases: Sequence[Case], key: Callable[[Case], Case]) -> list[tuple[Case, list[Case]]]:
    groups: dict[Case, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.items())


def _pool(members: Sequence[Case], runs: Mapping[Case, Runs]) -> dict[int, Measurement]:
    """The repeats that every member was measured in."""
    each = [runs.get(case, {}) for case in members]
    common = set(each[0]).intersection(*each[1:])
    return {repeat: pool(own[repeat] for own in each) for repeat in sorted(common)}


def _ratio(of: Runs, over: Runs) -> Spread | None:
    """Within a repeat both met the same state of the machine, so drifts cancel out."""
    return spread(
        of[repeat].tokens_per_second / over[repeat].tokens_per_second for repeat in of if repeat in over
    )


def _decoding_ratio(of: Runs, plain: Runs) -> Spread | None:
    """Where answers have forms and so end at different times: while all places are filled."""
    speeds = [
        (of[repeat].full_speed, plain[repeat].full_speed)
        for repeat in of
        if repeat in plain and of[repeat].grammar_seconds
    ]
    return spread(own / other for own, other in speeds if own and other)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return spread_of(known) if known else None


def spread_of(values: Iterable[float]) -> Spread:
    """Of one value or more."""
    known = list(values)
    return Spread(median(known), min(known), max(known))
