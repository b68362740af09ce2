"""The controller: what every request of a step may draft, its history and the server's remembered.

Three rules keep it honest. What it decides on is known before anything of the step is drawn, so the law
of the answers does not change. A request with a seed is decided on from its own history and from costs
that are part of the build, so its text does not depend on what else runs. And once the server has seen a few
trees, no plan is taken that is predicted to give fewer tokens a second than plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..request import SamplingParams, SpeculationMode
from ..tree import TreeShape
from .acceptance import Acceptance
from .alone import alone_rung, known_pays
from .base import Choice, KnownLimit, Off, StepCosts, TreeBudget, View
from .baseline import BaselineProbes
from .costs import ReferenceCosts
from .drafting import settle, usual_catch_up, with_catch_up
from .history import FIRST_WAIT, History
from .known import beside_known, choose_known, known_price
from .ladder import Ladder, kind_of, ladders, levels_of, shape_of
from .looks import Looks
from .plan import Bid, Load, Plan, choose, step_seconds
from .record import AcceptanceRecord
from .tries import Tries

# A gain that is not noise: without trees so much begins them, and less ends them. Whoever has a seed goes by
# costs that are part of the build and not noisy.
_MARGIN, _KEPT_MARGIN, _SEED_MARGIN = 0.03, 0.02, 0.02
# While the server has seen little at a temperature, it may lose so much to see more: a few steps.
_FEW_TESTS, _CURIOSITY = 32.0, 0.05
# A plan holds for 3 steps, for one more with every 4 requests more, and for 16 at most; one without any
# trees, from which nothing is learned, for three times as many.
_SHORTEST_HELD, _HELD_SHARE, _LONGEST_HELD = 3, 4, 16
_HELD_PLAIN = 3
_MOST_RENEWALS = 3  # of a plan, while requests' rates are the same
_NOTHING = KnownLimit(0, 1.0)
_PROBE = TreeBudget(1, 1)  # the cheapest tree that tells anything
_REQUEST_MEMORY, _REQUEST_PRIOR = 24.0, 6.0  # tests
_ALONE_PRIOR = 2.0  # of a request that knows nothing of others
_SERVER_MEMORY, _SERVER_PRIOR = 512.0, 8.0
_FIXED_LEAST = 0.15  # chance of a known candidate that is worth a drafted one
_LENGTH_GRAIN = 256  # tokens of a request that make no difference to what a candidate costs
_LEAST = 0.03  # chance below which estimates mean little
_TEMPERATURES = (0.0, 0.4, 0.8, 1.2)  # upper ends of what shares statistics


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    max_step_nodes: int  # of the fixed mode, shared by the requests that decode
    baseline_probe_share: float  # of the steps with trees, run without any to see what that costs


@dataclass(slots=True)
class _Held:
    """A plan that holds for some steps."""

    batch: tuple[int, ...]  # what it was made for
    plan: Plan
    drafts: bool  # it has trees
    ladders: list[tuple[Ladder, ...]]  # of every request, which it was made from
    steps: int  # that it holds for
    steps_left: int
    renewals: int = 0
    try_seconds: float | None = None  # that a single candidate more would take; None: not worked out yet

    def renew(self, trees: Sequence[tuple[Ladder, ...]]) -> bool:
        """Let it hold once more, if nothing new was learned of any request's trees.

        What steps cost may have changed meanwhile, so not for ever. trees: as of now; the same if equal.
        """
        if self.renewals == _MOST_RENEWALS:
            return False
        if any(now is not known for now, known in zip(trees, self.ladders, strict=True)):
            return False
        self.renewals += 1
        self.steps_left = self.steps
        return True

    def fits(self, views: Sequence[View]) -> bool:
        """Whether no tree is deeper than its request may still have it."""
        if not self.drafts:
            return True
        pairs = zip(self.plan.rungs, views, strict=True)
        return all(rung is None or rung.depth <= view.max_depth for rung, view in pairs)


class Controller:
    """One server's. Not for use by two threads at once."""

    def __init__(self, settings: ControllerSettings, costs: StepCosts, reference: ReferenceCosts) -> None:
        """costs: as measured. reference: for requests with a seed, the same on every machine."""
        self.settings = settings
        self.costs = costs
        self._reference = reference
        self._server: dict[tuple[str, int], Acceptance] = {}  # by verifier and temperature
        self._baseline_probes = BaselineProbes(settings.baseline_probe_share)
        self._tries = Tries()
        self._looks = Looks()
        self._drafted: dict[int, bool] = {}  # by magnitude of the batch: the last plan had trees
        nothing = Load(0, 0, 0, 0.0)
        self._held = _Held((), Plan((), 0.0, 0.0, 0.0, 0.0, nothing), False, [], 0, 0)
        self._record = AcceptanceRecord()
        self._known_limits: dict[tuple[int, int], KnownLimit] = {}  # since the last plan was made

    def take_record(self) -> AcceptanceRecord:
        """What was kept since the last call."""
        record, self._record = self._record, AcceptanceRecord()
        return record

    def history(self, verifier: str, sampling: SamplingParams) -> History:
        """Of a new request. One with a seed learns nothing from others, nor they from it."""
        if sampling.seed is not None and sampling.temperature > 0:
            return History(Acceptance(_REQUEST_MEMORY, _ALONE_PRIOR), greedy=False)
        bucket = sum(sampling.temperature > bound for bound in _TEMPERATURES)
        server = self._server.setdefault((verifier, bucket), Acceptance(_SERVER_MEMORY, _SERVER_PRIOR))
        acceptance = Acceptance(_REQUEST_MEMORY, _REQUEST_PRIOR, server)
        # Where others have shown what to expect, a try can wait as long as after one that kept nothing.
        wait = FIRST_WAIT if server.num_tests > _SERVER_PRIOR else 0
        return History(acceptance, greedy=sampling.temperature == 0, wait=wait)

    def observe(self, history: History, shape: TreeShape, num_kept: int) -> None:
        """A tree of this shape was verified, and a path of ``num_kept`` candidates kept."""
        self._record.add(shape, num_kept, greedy=history.greedy)
        levels = levels_of(shape, greedy=history.greedy)
        history.acceptance.observe(levels, num_kept)
        if history.acceptance.prior is not None:
            history.acceptance.prior.observe(levels, num_kept)
        if not history.is_on and num_kept:  # a try that paid for a part of itself
            held = self._held.plan
            self._tries.repay(held.seconds / max(1, len(held.rungs)))
        history.tried(kept=num_kept > 0)

    def plan(self, views: Sequence[View], prompt_tokens: int) -> list[Choice]:
        """One step's trees. prompt_tokens: rows of prompts that are likely to share the step."""
        count = len(views)
        load = Load(count + prompt_tokens, prompt_tokens, count, float(count))
        choices: list[Choice | None] = []
        open_to_choice: list[View] = []
        forced, knows = 0, False
        share = self.settings.max_step_nodes // max(1, count)
        for view in views:
            load.context += view.length
            forced += view.forced
            choice = self._alone(view, share)
            choices.append(choice)
            if view.known.num_nodes:
                knows |= view.is_shared
                if choice is not None and choice.known and not view.is_shared:
                    load.add_known(view.known)
            if choice is None:
                open_to_choice.append(view)
            elif choice.budget is not None:
                settle(load, view, choice.budget)
        load.rows += forced
        shared = iter(self._share_out(open_to_choice, load))
        plan = [choice or next(shared) for choice in choices]
        taken = False
        if knows:
            plan = choose_known(views, plan, load, self.costs)
            taken = any(
                choice.known and view.known.num_nodes and view.is_shared
                for view, choice in zip(views, plan, strict=True)
            )
        self._looks.made(taken=taken)
        if forced or prompt_tokens:  # the step would be none of plain decoding's
            return plan
        gain = self._held.plan.gain if open_to_choice else 1.0  # known candidates alone have no plan
        if self._is_baseline(views, plan, gain):
            return [
                Choice(None, Off.BASELINE, known=False) if _has_tree(view, choice) else choice
                for view, choice in zip(views, plan, strict=True)
            ]
        return plan

    def late(self, view: View) -> Choice:
        """Of a request that joins a step already planned: its own tree if it has a seed, else none."""
        choice = self._alone(view, view.max_nodes)
        return Choice(None, known=False) if view.is_shared or choice is None else choice

    def known_limit(
        self, mode: SpeculationMode, batch: int, length: int, *, is_free: bool, drafts: bool
    ) -> KnownLimit:
        """What a request may add of candidates that are known, one of ``batch`` requests that decode.

        drafts: there are drafted candidates, too, whose place known ones take in the fixed mode.
        """
        if mode is SpeculationMode.OFF:
            return _NOTHING
        if mode is SpeculationMode.FIXED:
            share = self.settings.max_step_nodes // max(1, batch)
            return KnownLimit(share if is_free else None, _FIXED_LEAST if drafts else _LEAST)
        if not is_free:
            return KnownLimit(None, max(_LEAST, known_price(self._reference, 1, length)))
        if not self._looks.is_due(batch):
            return _NOTHING
        # Asked for every request of a step, and as good as the same for most of them.
        key = (batch, length // _LENGTH_GRAIN)
        limit = self._known_limits.get(key)
        if limit is None:
            limit = KnownLimit(None, max(_LEAST, known_price(self.costs, batch, length)))
            self._known_limits[key] = limit
        return limit

    def keeps_up(self, mode: SpeculationMode, batch: int, *, is_free: bool) -> bool:
        """Whether the draft should read a prompt along with the target: if trees are likely to follow.

        batch: requests that run, or are about to.
        """
        if mode is SpeculationMode.OFF or not is_free:
            return mode is not SpeculationMode.OFF
        if mode is SpeculationMode.FIXED:
            return batch <= self.settings.max_step_nodes
        return self._drafted_at(batch)

    def _drafted_at(self, batch: int) -> bool:
        """Whether the last plan for about as many requests had trees; True before there was one."""
        magnitude = batch.bit_length()
        nearest = min(self._drafted, key=lambda known: abs(known - magnitude), default=None)
        return nearest is None or self._drafted[nearest]

    def _alone(self, view: View, share: int) -> Choice | None:
        """The choice for a request that does not depend on the others, None for one that does."""
        if view.off is not None or view.max_nodes == 0 or view.max_depth == 0:
            return Choice(None, view.off)
        if view.mode is SpeculationMode.FIXED:
            share = max(0, share - view.known.num_nodes)
            nodes = min(view.room, share) if view.is_free else view.room
            return Choice(TreeBudget(nodes, view.max_depth)) if nodes else Choice(None, Off.LOAD)
        return None if view.is_free else self._own(view)

    def _own(self, view: View) -> Choice:
        """For a request with a seed: the tree it would get alone on the reference machine."""
        history = view.history
        rung = alone_rung(view, self._reference, margin=0.0 if history.is_on else _SEED_MARGIN)
        history.turn(on=rung is not None, length=view.length)
        if rung is not None:
            return Choice(rung.budget)
        if history.wants_probe:
            return Choice(_PROBE)
        return Choice(None, Off.NO_GAIN, known=known_pays(view, self._reference))

    def _share_out(self, views: Sequence[View], load: Load) -> list[Choice]:
        """Of the requests that share what the machine can do."""
        if not views:
            return []
        plan = self._held_plan(views, load)
        choices, waiting, without = [], [], Choice(None, Off.NO_GAIN)
        for index, (view, rung) in enumerate(zip(views, plan.rungs, strict=True)):
            view.history.turn(on=rung is not None, length=view.length)
            if rung is not None:
                choices.append(beside_known(view, rung, plan))
                continue
            choices.append(without)
            if view.history.wants_probe:
                waiting.append(index)
        if waiting:
            self._probe(views, choices, waiting)
        return choices

    def _held_plan(self, views: Sequence[View], load: Load) -> Plan:
        """The best plan, kept for some steps while the same requests are in them: it costs time, too."""
        batch = (load.rows, *(id(view.history) for view in views))
        held = self._held
        goes_on = held.batch == batch and held.fits(views)
        if not goes_on or held.steps_left == 0:
            trees = [ladders(view) for view in views]
            if not (goes_on and held.renew(trees)):
                held = self._held = self._new_plan(views, load, batch, trees)
        held.steps_left -= 1
        self._tries.earn(len(views), held.plan.seconds)
        return held.plan

    def _new_plan(
        self, views: Sequence[View], load: Load, batch: tuple[int, ...], trees: list[tuple[Ladder, ...]]
    ) -> _Held:
        """trees: those worth considering, of every request."""
        bids = [
            Bid(of_view, view.length, usual_catch_up(view))
            for of_view, view in zip(trees, views, strict=True)
        ]
        plan = choose(bids, load, self.costs, margin=self._margin(views))
        self._known_limits.clear()
        drafts = any(rung is not None for rung in plan.rungs)
        self._drafted[len(views).bit_length()] = drafts
        self._tries.planned(len(views), trees=drafts)
        steps = self._steps_held(views, drafts=drafts)
        return _Held(batch, plan, drafts, trees, steps, steps)

    def _steps_held(self, views: Sequence[View], *, drafts: bool) -> int:
        """For how many steps a plan holds."""
        if drafts and _is_curious(views):  # what it costs is not known either, and every step tells
            return 1
        steps = _SHORTEST_HELD + len(views) // _HELD_SHARE
        return min(_LONGEST_HELD, steps if drafts else _HELD_PLAIN * steps)

    def _margin(self, views: Sequence[View]) -> float:
        """Share by which a plan with trees must be better than one without."""
        if _is_curious(views):
            return -_CURIOSITY
        # A new request counts as one that has trees; at a load where they did not pay it is no reason.
        goes_on = self._drafted_at(len(views)) and any(view.history.is_on for view in views)
        return _KEPT_MARGIN if goes_on else _MARGIN

    def _probe(self, views: Sequence[View], choices: list[Choice], waiting: Sequence[int]) -> None:
        """Try one of those that go without, if the time that tries may take allows it.

        waiting: which of them are to be tried again.
        """
        index = min(waiting, key=lambda index: views[index].behind)
        view = views[index]
        choice = with_catch_up(view, _PROBE)
        if choice.budget is None:
            if self._tries.afford_reading(self.costs.draft_seconds(choice.catch_up, view.length)):
                choices[index] = choice
            return
        held = self._held
        if held.try_seconds is None:
            load = replace(held.plan.load)
            load.add_tree(shape_of(kind_of(view), _PROBE), behind=view.behind, length=view.length)
            held.try_seconds = step_seconds(load, self.costs) - held.plan.seconds
        if self._tries.afford(held.try_seconds):
            choices[index] = choice
            self._tries.tried(len(views))

    def _is_baseline(self, views: Sequence[View], plan: Sequence[Choice], gain: float) -> bool:
        """Whether this step shall show what plain decoding costs; never at the cost of a seed's tree.

        gain: of the trees, in tokens a second; 1: not known.
        """
        with_trees = [view for view, choice in zip(views, plan, strict=True) if _has_tree(view, choice)]
        if not with_trees or not all(view.is_free for view in with_trees):
            return False
        return self._baseline_probes.is_due(len(views), gain)


def _is_curious(views: Sequence[View]) -> bool:
    """Whether the server has seen little at the temperature of one of them."""
    priors = (view.history.acceptance.prior for view in views)
    return any(prior is not None and prior.num_tests < _FEW_TESTS for prior in priors)


def _has_tree(view: View, choice: Choice) -> bool:
    return choice.budget is not None or (choice.known and view.known.num_nodes > 0)
