"""The controller at work without models: costs from a table, acceptance from given rates.

What a step takes is what the costs say, and what is kept of a tree is drawn from the model of
`resispec.engine.budget.acceptance`. So a batch of 256 on a GPU can be looked at on a laptop, and a change
of the policy before it meets a server. Steps that only decode are simulated, with drafted trees: prompts
and candidates that are known beforehand are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ..drawing import Drawing
from ..request import SamplingParams, SpeculationMode
from .acceptance import kept_share
from .base import Off, StepCosts, TreeBudget, View
from .controller import Controller, ControllerSettings
from .costs import reference_costs
from .ladder import kind_of, levels_of, shape_of
from .plan import Load, step_seconds


@dataclass(frozen=True, slots=True)
class Regime:
    """A stretch of text."""

    rates: tuple[float, ...]  # of a single child, by depth; deeper ones go on as the last
    tokens: int  # how long it lasts; the last one goes on

    def rate(self, depth: int) -> float:
        return self.rates[min(depth, len(self.rates) - 1)]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``batch`` requests at a time, each of ``tokens`` tokens through the same regimes."""

    regimes: tuple[Regime, ...]
    batch: int
    tokens: int = 400  # decoded for every request
    rounds: int = 2  # requests one after the other in each place of the batch
    repeats: int = 1  # times that all of it is done, by the same controller
    prompt: int = 100  # tokens before the first
    max_nodes: int = 16
    max_depth: int = 4
    mode: SpeculationMode = SpeculationMode.AUTO
    temperature: float = 1.0
    seed: int = 0

    def regime(self, position: int) -> Regime:
        for regime in self.regimes[:-1]:
            if position < regime.tokens:
                return regime
            position -= regime.tokens
        return self.regimes[-1]


@dataclass(slots=True)
class Outcome:
    """What came of it. Times in seconds."""

    tokens: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0  # for the same tokens at the same batch sizes
    switches: int = 0  # from trees to none or back, over all requests
    sizes: list[float] = field(default_factory=list)  # of each step: mean candidates of a request

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class _Text:
    """A request on its way."""

    view: View
    tokens: int = 0
    behind: int = 1
    had_tree: bool = False


def simulate(scenario: Scenario, costs: StepCosts, settings: ControllerSettings | None = None) -> Outcome:
    """Run the real controller through a scenario; ``costs`` are what it believes and what is paid."""
    rng = random.Random(scenario.seed)  # noqa: S311  not for secrets
    settings = settings or ControllerSettings(1 << 30, 0.0)
    controller = Controller(settings, costs, reference_costs("cpu"))  # nobody here has a seed
    outcome = Outcome()
    for _ in range(scenario.repeats):
        left = scenario.batch * (scenario.rounds - 1)
        live = [_start(scenario, controller) for _ in range(scenario.batch)]
        while live:
            _step(live, scenario, controller, costs, rng, outcome)
            for text in [text for text in live if text.tokens >= scenario.tokens]:
                live.remove(text)
                if left:
                    left -= 1
                    live.append(_start(scenario, controller))
    return outcome


def _start(scenario: Scenario, controller: Controller) -> _Text:
    history = controller.history("resispec", SamplingParams(temperature=scenario.temperature))
    is_off = scenario.mode is SpeculationMode.OFF
    view = View(
        history=history,
        mode=scenario.mode,
        is_free=True,
        max_nodes=0 if is_off else scenario.max_nodes,
        max_depth=scenario.max_depth,
        off=Off.REQUEST if is_off else None,
        length=scenario.prompt,
        behind=1,
        drawing=Drawing.HEAD_AND_TAIL,
        shares_nodes=True,
    )
    return _Text(view)


def _step(
    live: Sequence[_Text],
    scenario: Scenario,
    controller: Controller,
    costs: StepCosts,
    rng: random.Random,
    outcome: Outcome,
) -> None:
    views = [_now(text, scenario) for text in live]
    context = sum(view.length for view in views)
    load = Load(rows=len(live), context=context, sampling=len(live), tokens=0.0)
    plain = step_seconds(load, costs)
    nodes = 0
    for text, view, choice in zip(live, views, controller.plan(views, 0), strict=True):
        kept = 0
        if choice.budget is not None:
            kept = _grow(view, choice.budget, scenario.regime(text.tokens), controller, load, rng)
            nodes += choice.budget.max_nodes
            text.behind = 1 + kept
        else:
            if choice.catch_up:
                load.depth = max(load.depth, 1)
                load.behind += choice.catch_up
            text.behind += 1 - choice.catch_up
        outcome.switches += text.had_tree is not (choice.budget is not None)
        text.had_tree = choice.budget is not None
        text.tokens += 1 + kept
        outcome.tokens += 1 + kept
        outcome.plain_seconds += (1 + kept) * plain / len(live)
    outcome.seconds += step_seconds(load, costs)
    outcome.sizes.append(nodes / len(live))


def _grow(
    view: View,
    budget: TreeBudget,
    regime: Regime,
    controller: Controller,
    load: Load,
    rng: random.Random,
) -> int:
    """A tree's cost into the load; the length of the path kept."""
    kind = kind_of(view)
    shape = shape_of(kind, budget)
    load.add_tree(shape, behind=view.behind, length=view.length)
    kept = 0
    for depth, level in enumerate(levels_of(shape, greedy=kind.greedy)):
        if rng.random() >= level.coverage * kept_share(regime.rate(depth), level.tries):
            break
        kept += 1
    controller.observe(view.history, shape, kept)
    return kept


def _now(text: _Text, scenario: Scenario) -> View:
    most = min(scenario.max_depth, scenario.tokens - text.tokens - 1)
    return msgspec.structs.replace(
        text.view, length=scenario.prompt + text.tokens, behind=text.behind, max_depth=most
    )
